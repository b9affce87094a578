"""PURE: Kubernetes timestamps."""

from __future__ import annotations

from datetime import UTC, datetime


def parse_timestamp(text: object) -> datetime | None:
    """Parse a Kubernetes timestamp; None if it is absent or malformed."""
    if not isinstance(text, str):
        return None
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        return None
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)


def format_timestamp(value: datetime) -> str:
    """Format a time as a Kubernetes timestamp, in whole seconds."""
    return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
