"""Paths outside the tree: builds, images and the state of clusters."""

import os
from collections.abc import Mapping
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[1] / "tools"


def cache(environment: Mapping[str, str] | None = None) -> Path:
    """The project's cache: `$XDG_CACHE_HOME/omni-operator`, or below `~/.cache`."""
    variables = os.environ if environment is None else environment
    base = variables.get("XDG_CACHE_HOME") or str(Path(variables.get("HOME") or "~").expanduser() / ".cache")
    return Path(base) / "omni-operator"
