"""PURE: comparison of a live object with the rendered one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

Path: TypeAlias = tuple[str, ...]
# Parts of an object that others may not extend: an entry that was not rendered changes what is selected or allowed.
CLOSED: frozenset[Path] = frozenset(
    {("spec", "selector"), ("spec", "podSelector"), ("spec", "ingress"), ("spec", "egress")}
)


def find_drift(live: Mapping[str, Any], rendered: Mapping[str, Any], at: Path = ()) -> dict[str, Any]:
    """Merge patch that corrects a live object; empty if it has everything that was rendered.

    Additions by others (labels, annotations, defaults of the API server) stay, except in closed parts.
    """
    closed = at[:2] in CLOSED
    patch: dict[str, Any] = {name: None for name in live if name not in rendered} if closed else {}
    for name, wanted in rendered.items():
        there = live.get(name)
        if isinstance(wanted, Mapping) and isinstance(there, Mapping):
            if part := find_drift(there, wanted, (*at, name)):
                patch[name] = part
        elif not (there == wanted if (*at, name)[:2] in CLOSED else covers(there, wanted)):
            patch[name] = wanted
    return patch


def covers(live: Any, rendered: Any) -> bool:
    """Whether the live value has everything that was rendered; additions by others do not count."""
    if isinstance(rendered, Mapping):
        return isinstance(live, Mapping) and all(covers(live.get(name), value) for name, value in rendered.items())
    if isinstance(rendered, list):
        if not isinstance(live, list) or len(live) != len(rendered):
            return False
        return all(covers(there, wanted) for there, wanted in zip(live, rendered, strict=True))
    return bool(live == rendered)
