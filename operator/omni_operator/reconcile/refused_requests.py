"""Requests of a job that the API server refused, in a row: what the status says, and the pause after each."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta

from omni_operator.cluster.errors import (
    ClusterError,
    Forbidden,
    KindAbsent,
    NamespaceTerminating,
    NameTaken,
    QuotaExceeded,
    ServerError,
    ServerFailed,
)
from omni_operator.status.observed.observation import Refusal

SERVER_ERRORS = 3  # answers with 500, or none in time, in a row that count as a refusal: what was sent may be the cause
WAIT_BACKOFF = timedelta(seconds=15)  # for what users install or delete while they watch the job
BACKOFF_FIRST = timedelta(seconds=5)
BACKOFF_MOST = timedelta(minutes=5)


@dataclass(slots=True)
class RefusedRequests:
    """Consecutive refusals of requests for one generation of a job, and answers with 500 to one of them.

    Attributes:
        last: the last refusal; None if there is none.
        until: end of the pause after it.
    """

    last: Refusal | None = None
    until: datetime | None = None
    _count: int = 0
    _failed: str = ""  # the request that got the last 500
    _failures: int = 0

    def begin_pause(self, error: ClusterError, now: datetime) -> Refusal:
        """Begin the pause after one more."""
        pause = min(BACKOFF_FIRST * 2 ** min(self._count, 16), BACKOFF_MOST)
        if isinstance(error, KindAbsent | NameTaken):
            pause = min(pause, WAIT_BACKOFF)
        self._count += 1
        self.last = describe(error)
        self.until = now + pause
        return self.last

    def clear(self) -> None:
        """Nothing is refused any more."""
        self.last = self.until = None
        self._count = 0

    def standing(self, now: datetime) -> Refusal | None:
        """The last refusal while its pause lasts."""
        return self.last if self.until and now < self.until else None

    @contextmanager
    def counting_errors(self) -> Iterator[None]:
        """Count the answers with 500, or none in time, that a request gets in a row.

        Raises:
            ServerFailed: there were too many.
        """
        try:
            yield
        except ServerError as error:
            self._failures = self._failures + 1 if error.request == self._failed else 1
            self._failed = error.request
            if self._failures >= SERVER_ERRORS:
                raise ServerFailed(str(error)) from error
            raise

    def forget_errors(self) -> None:
        """The next 500 is the first one again."""
        self._failures = 0


def describe(error: ClusterError) -> Refusal:
    """What the status says of an error."""
    text = str(error)
    match error:
        case KindAbsent():
            return Refusal(kind="KubeRayNotInstalled", text=f"install KubeRay (its CRDs are missing): {text}")
        case NameTaken():
            return Refusal(kind="NameTaken", text=text)
        case QuotaExceeded():
            return Refusal(kind="QuotaExceeded", text=text)
        case NamespaceTerminating():
            return Refusal(kind="NamespaceTerminating", text=text)
        case Forbidden():
            return Refusal(kind="Forbidden", text=text)
        case ServerFailed():
            return Refusal(kind="ServerFailed", text=f"the API server failed {SERVER_ERRORS} times in a row: {text}")
        case _:
            return Refusal(kind="ChildRefused", text=text)
