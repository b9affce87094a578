"""PURE: requests of a job that the API server refused, in a row: what the status says, and the pause after each."""

from __future__ import annotations

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


@dataclass(frozen=True, slots=True)
class ServerErrors:
    """Answers with 500, or none in time, in a row to one request for one generation of a job."""

    request: str = ""
    generation: int = 0
    count: int = 0

    def add(self, error: ServerError, generation: int) -> ServerErrors:
        """With one more; the count starts again with another request or generation."""
        same = (error.request, generation) == (self.request, self.generation)
        return ServerErrors(error.request, generation, self.count + 1 if same else 1)

    @property
    def is_refusal(self) -> bool:
        """Whether there are enough errors to show them as a refusal."""
        return self.count >= SERVER_ERRORS


@dataclass(frozen=True, slots=True)
class Refusals:
    """Consecutive refusals of requests for one generation of a job.

    Attributes:
        last: the last refusal; None if there is none.
        until: end of the pause after it.
    """

    generation: int = 0
    count: int = 0
    last: Refusal | None = None
    until: datetime | None = None

    def add(self, error: ClusterError, generation: int, now: datetime) -> Refusals:
        """With one more; a changed spec starts again with the shortest pause."""
        count = self.count + 1 if generation == self.generation else 1
        pause = min(BACKOFF_FIRST * 2 ** min(count - 1, 16), BACKOFF_MOST)
        if isinstance(error, KindAbsent | NameTaken):
            pause = min(pause, WAIT_BACKOFF)
        return Refusals(generation, count, describe(error), now + pause)

    def standing(self, generation: int, now: datetime) -> Refusal | None:
        """The last refusal while its pause lasts and the spec is unchanged."""
        return self.last if self.generation == generation and self.until and now < self.until else None


# Nearly all jobs have no refusals and no server errors, so they share these objects.
NO_REFUSALS = Refusals()
NO_SERVER_ERRORS = ServerErrors()


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
