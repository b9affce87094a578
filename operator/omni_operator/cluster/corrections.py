"""PURE: corrections of objects that others change, and the pause after many in a row.

Another controller, or a user's script, may put its own values back each time. Without a pause both would write as fast
as the API server answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

AT_ONCE = 5  # in a row; the creation of a job's objects counts too
PAUSE_FIRST, PAUSE_MOST = timedelta(seconds=1), timedelta(seconds=60)
FORGOTTEN = timedelta(minutes=10)  # after which a correction begins a new row


@dataclass(frozen=True, slots=True)
class Corrections:
    """Corrections in a row of the objects of a job.

    Attributes:
        at: time of the last one; None if there was none.
        generation: of the job's spec; a changed spec ends the pause.
    """

    count: int = 0
    at: datetime | None = None
    generation: int = 0

    def add(self, now: datetime, generation: int) -> Corrections:
        """With one more."""
        follows = self.at is not None and now - self.at < FORGOTTEN and generation == self.generation
        return Corrections(self.count + 1 if follows else 1, now, generation)

    def pause_end(self, now: datetime, generation: int) -> datetime | None:
        """When the next correction is allowed; None: now."""
        if self.at is None or self.count < AT_ONCE or generation != self.generation:
            return None
        end = self.at + min(PAUSE_FIRST * 2 ** min(self.count - AT_ONCE, 16), PAUSE_MOST)
        return end if now < end else None


NO_CORRECTIONS = Corrections()
