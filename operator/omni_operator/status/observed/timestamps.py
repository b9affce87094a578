"""PURE: Kubernetes timestamps."""

from datetime import UTC, datetime

# Clamped to years in which adding and subtracting any duration of a spec gives a valid time.
EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)
LATEST = datetime(2200, 1, 1, tzinfo=UTC)


def parse_timestamp(text: object) -> datetime | None:
    """Parse a Kubernetes timestamp, clamped to the years 1970 to 2200; None if it is absent or malformed."""
    if not isinstance(text, str):
        return None
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        return None
    aware = parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)
    return min(max(aware, EARLIEST), LATEST)


def format_timestamp(value: datetime) -> str:
    """Format a time as a Kubernetes timestamp, in whole seconds."""
    return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
