"""PURE: corrections of objects that others change, and the pause after many in a row.

Another controller, or a user's script, may put its own values back each time. Without a pause both would write as fast
as the API server answers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from omni_operator.cluster.field_managers import describe_author
from omni_operator.status.decisions.situation import (
    FinishReplacement,
    GiveUpTemplate,
    ReplacePods,
    ReserveQuota,
    ScaleGroup,
    StartReplacement,
    Step,
)

AT_ONCE = 5  # in a row; the first time that something is written counts too
PAUSE_FIRST = timedelta(seconds=1)
PAUSE_MOST = timedelta(seconds=60)
FORGOTTEN = timedelta(minutes=10)  # after which a correction begins a new row


@dataclass(frozen=True, slots=True)
class Corrections:
    """Consecutive corrections of one field.

    Attributes:
        at: time of the last correction; None if there was none.
        generation: generation of the job's spec; a changed spec ends the pause.
        text: message about what keeps being changed, and by whom.
    """

    count: int = 0
    at: datetime | None = None
    generation: int = 0
    text: str = ""

    def add(self, now: datetime, generation: int, text: str = "") -> Corrections:
        """With one more."""
        follows = self.at is not None and now - self.at < FORGOTTEN and generation == self.generation
        return Corrections(self.count + 1 if follows else 1, now, generation, text)

    def pause_end(self, now: datetime, generation: int) -> datetime | None:
        """When the next correction is allowed; None: now."""
        if self.at is None or self.count < AT_ONCE or generation != self.generation:
            return None
        end = self.at + min(PAUSE_FIRST * 2 ** min(self.count - AT_ONCE, 16), PAUSE_MOST)
        return end if now < end else None

    def row_end(self, now: datetime, generation: int) -> datetime | None:
        """When a row of corrections too long to be a coincidence is forgotten; None: the row is shorter."""
        if self.at is None or self.count < AT_ONCE or generation != self.generation:
            return None
        end = self.at + FORGOTTEN
        return end if now < end else None


NO_CORRECTIONS = Corrections()


@dataclass(frozen=True, slots=True)
class Change:
    """A field and its desired value. Writing the same value again means that another client overwrote it."""

    what: tuple[str, ...]
    value: object = None


@dataclass(slots=True)
class CorrectionRows:
    """Consecutive corrections of each field of a job's objects."""

    _rows: dict[tuple[str, ...], tuple[object, Corrections]] = field(default_factory=dict)

    def of(self, change: Change) -> Corrections:
        """How often the last change of its kind was this one."""
        value, row = self._rows.get(change.what, (change.value, NO_CORRECTIONS))
        return row if value == change.value else NO_CORRECTIONS

    def add(self, change: Change, now: datetime, generation: int, text: str = "") -> None:
        """Add one; what was not changed for a while is forgotten."""
        row = self.of(change).add(now, generation, text)
        kept = {what: one for what, one in self._rows.items() if one[1].at is not None and now - one[1].at < FORGOTTEN}
        self._rows = {**kept, change.what: (change.value, row)}

    def changed_by_others(self, now: datetime, generation: int) -> str:
        """What others change all the time, for a condition; empty if they change nothing."""
        texts = (row.text for _, row in self._rows.values() if row.row_end(now, generation))
        return "; ".join(dict.fromkeys(texts))

    def times(self, now: datetime, generation: int) -> Iterator[datetime]:
        """When a pause ends, and when a row is forgotten."""
        for _, row in self._rows.values():
            yield from filter(None, (row.pause_end(now, generation), row.row_end(now, generation)))


def change_of(step: Step) -> Change | None:
    """What a step changes of a worker group; None for other steps."""
    match step:
        case ScaleGroup():
            return Change((step.cluster.uid, step.group, "replicas"), step.new)
        case ReserveQuota():
            return Change((step.rayjob.uid, step.request.group, "replicas"), step.new)
        case ReplacePods():
            return Change((step.cluster.uid, step.group.name, "pods"), step.removed)
        case StartReplacement() | FinishReplacement() | GiveUpTemplate():
            return Change((step.cluster.uid, step.group.name, type(step).__name__))
        case _:
            return None


def describe(what: str, author: str) -> str:
    """The text of a condition about something that others change."""
    return (
        f"{describe_author(author)} changes {what} again after each correction by the operator, which waits longer "
        "each time, up to 60 s"
    )
