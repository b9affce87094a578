"""PURE: comparison of a live object with the rendered one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def covers(live: Any, rendered: Any) -> bool:
    """Whether the live object has everything that was rendered; additions by others do not count."""
    if isinstance(rendered, Mapping):
        return isinstance(live, Mapping) and all(covers(live.get(name), value) for name, value in rendered.items())
    if isinstance(rendered, list):
        if not isinstance(live, list) or len(live) != len(rendered):
            return False
        return all(covers(there, wanted) for there, wanted in zip(live, rendered, strict=True))
    return bool(live == rendered)
