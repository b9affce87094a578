"""PURE: corrections of objects that others change, and the pause after many in a row.

Another controller, or a user's script, may put its own values back each time. Without a pause both would write as fast
as the API server answers.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from omni_operator.cluster.field_managers import describe_author

AT_ONCE = 5  # in a row; the first time that something is written counts too
FIRST_PAUSE = timedelta(seconds=1)
LONGEST_PAUSE = timedelta(seconds=60)
FORGOTTEN = timedelta(minutes=10)  # after which a correction begins a new row


@dataclass(frozen=True, slots=True)
class Change:
    """A field and its desired value. Writing the same value again means that another client overwrote it."""

    what: tuple[str, ...]
    value: object = None


@dataclass(frozen=True, slots=True)
class Row:
    """Consecutive corrections of one field to one value.

    Attributes:
        at: time of the last one.
        text: message about what keeps being changed, and by whom.
    """

    change: Change
    count: int
    at: datetime
    text: str

    @property
    def pause_end(self) -> datetime:
        """When the next correction is allowed."""
        longer = self.count - AT_ONCE
        return self.at + min(FIRST_PAUSE * 2 ** min(longer, 16), LONGEST_PAUSE) if longer >= 0 else self.at

    @property
    def row_end(self) -> datetime:
        """When a row that is too long to be a coincidence is forgotten."""
        return self.at + FORGOTTEN if self.count >= AT_ONCE else self.at


@dataclass(slots=True)
class Corrections:
    """Corrections of the objects of a job with one generation: a changed spec ends all pauses."""

    _rows: dict[tuple[str, ...], Row] = field(default_factory=dict)

    def count(self, change: Change) -> int:
        """How often the last change of its kind in a row was this one."""
        row = self._rows.get(change.what)
        return row.count if row and row.change == change else 0

    def pause_end(self, change: Change, now: datetime) -> datetime | None:
        """When the next correction of this kind is allowed; None: now."""
        row = self._rows.get(change.what)
        return row.pause_end if row and row.change == change and now < row.pause_end else None

    def record(self, change: Change, now: datetime, text: str) -> None:
        """Count one more; what was not changed for a while is forgotten."""
        self._rows = {what: row for what, row in self._rows.items() if now - row.at < FORGOTTEN}
        self._rows[change.what] = Row(change, self.count(change) + 1, now, text)

    def changed_by_others(self, now: datetime) -> str:
        """What others change all the time, for a condition; empty if they change nothing."""
        return "; ".join(dict.fromkeys(row.text for row in self._rows.values() if now < row.row_end))

    def times(self, now: datetime) -> Iterator[datetime]:
        """When a pause ends, and when a row is forgotten."""
        for row in self._rows.values():
            yield from (at for at in (row.pause_end, row.row_end) if now < at)


def describe(what: str, author: str) -> str:
    """The text of a condition about something that others change."""
    return (
        f"{describe_author(author)} changes {what} again after each correction by the operator, which waits longer "
        "each time, up to 60 s"
    )
