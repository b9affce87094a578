"""uv, which `make setup` installs."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def below_uv() -> list[str]:
    """A command that starts this Python below `uv run`."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    (uv,) = cache.glob("omni-operator/uv-*/bin/uv")
    return [str(uv), "run", "--no-project", "--offline", "--python", sys.executable, sys.executable]
