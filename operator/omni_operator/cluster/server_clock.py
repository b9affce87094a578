"""The API server's time, which the operator compares timestamps of objects with.

The wall clock of the operator's node may differ from it by minutes. The API server's answers say what time it is there,
cut to a second; between them, a clock counts on that cannot be set.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

from omni_operator.status.observed.timestamps import EARLIEST

from .leader.write_fence import lease_clock

SERVERS_APART = timedelta(minutes=1)  # that the clocks of several API servers may differ by


def utc_now() -> datetime:
    """The wall clock of this machine."""
    return datetime.now(UTC)


@dataclass(slots=True)
class ServerClock:
    """Clock of the API server. It goes back only if the API server's was set back, by more than `SERVERS_APART`.

    Attributes:
        local: the time before the first answer.
        seconds: a clock that never goes back, in seconds.
    """

    local: Callable[[], datetime] = utc_now
    seconds: Callable[[], float] = lease_clock
    _ahead: float | None = None  # the API server's time when `seconds` was 0, in seconds since 1970
    _latest: datetime = EARLIEST

    def observe(self, date: str | None, sent: float) -> None:
        """Take the `Date` of an answer to a request that was sent at `sent`, by `seconds`; none if it is malformed."""
        try:
            at = parsedate_to_datetime(date or "").timestamp()
        except (ValueError, OverflowError):
            return
        least = at - self.seconds()
        most = at + 1 - sent
        self._ahead = least if self._ahead is None else min(max(self._ahead, least), most)

    def __call__(self) -> datetime:
        now = self.local() if self._ahead is None else datetime.fromtimestamp(self._ahead + self.seconds(), UTC)
        if not now < self._latest < now + SERVERS_APART:
            self._latest = now
        return self._latest
