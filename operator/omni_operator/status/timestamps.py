"""PURE: Kubernetes timestamps."""

from __future__ import annotations

from datetime import UTC, datetime


def parse_timestamp(text: object) -> datetime | None:
    """The time that a timestamp names; None where there is none or it is not one."""
    if not isinstance(text, str):
        return None
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        return None
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)


def format_timestamp(value: datetime) -> str:
    """A Kubernetes timestamp, whole seconds."""
    return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
