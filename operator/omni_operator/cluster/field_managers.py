"""PURE: field managers: who changed an object last, from its `managedFields`."""

from collections.abc import Iterable, Mapping
from typing import Any

from omni_operator.api.names import FIELD_MANAGER
from omni_operator.cluster.kinds import Body
from omni_operator.status.observed.timestamps import EARLIEST, parse_timestamp


def find_author(body: Body, *field: str, fallback: bool = True) -> str:
    """Name of the field manager that changed an object last, other than the operator; empty if none is known.

    Args:
        field: path of the changed field, as in `managedFields`. A manager that has it counts before others, whose
            changes may be of the same second.
        fallback: whether these others count at all.
    """
    entries = [
        entry
        for entry in body["metadata"].get("managedFields") or ()
        if not entry.get("subresource") and not str(entry.get("manager") or "").startswith(FIELD_MANAGER)
    ]
    last: Mapping[str, object] = max(
        [entry for entry in entries if field and _owns(entry, field)] or (entries if fallback else ()),
        key=lambda entry: parse_timestamp(entry.get("time")) or EARLIEST,
        default={},
    )
    return str(last.get("manager") or "")


def _owns(entry: Mapping[str, Any], field: Iterable[str]) -> bool:
    inside: Any = entry.get("fieldsV1")
    for name in field:
        inside = inside.get(name) if isinstance(inside, dict) else None
    return inside is not None


def describe_author(author: str) -> str:
    """The field manager in a text; it may be unknown."""
    return f"field manager {author!r}" if author else "another program"
