"""Requests that fail on purpose: the operator dies before or after a write, an answer is lost, writes are rejected.

It wraps a `Cluster`, so tests can do the same to the in-memory API server and to a real one.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from omni_operator.cluster.errors import Refused, Unavailable
from omni_operator.cluster.kinds import Kind
from omni_operator.cluster.protocol import Cluster

READS = frozenset({"read", "list_metadata", "list_objects", "serves", "review_token"})
OF_THE_JOB = frozenset({"apply_status", "patch", "delete"})


class Killed(BaseException):  # no handler of errors may catch it, as none catches SIGKILL
    """The operator's process is dead."""


class Fault(str, Enum):
    """What happens to one write."""

    KILLED_BEFORE = "killed before the write"
    KILLED_AFTER = "killed after the write"
    NOT_SENT = "the write was not carried out"
    ANSWER_LOST = "the write was carried out, the answer was lost"
    REJECTED = "the API server rejects the write"


@dataclass(slots=True)
class FaultyCluster:
    """The connection of one operator process to the API server.

    Attributes:
        writes: every write so far, in order, e.g. `create RayJob/red-a01`.
        fault: called before each write; None: nothing happens to it.
    """

    cluster: Cluster
    writes: list[str] = field(default_factory=list)
    fault: Callable[[str], Fault | None] = lambda write: None

    def __getattr__(self, verb: str) -> Any:
        target = getattr(self.cluster, verb)
        if verb in READS or not inspect.iscoroutinefunction(target):
            return target

        async def send(*parts: Any) -> Any:
            write = f"{verb} {_object(parts)}"
            happens = self.fault(write)
            self.writes.append(write)
            if happens is Fault.KILLED_BEFORE:
                raise Killed
            if happens is Fault.NOT_SENT:
                raise Unavailable(f"{verb}: no connection")
            if happens is Fault.REJECTED:
                raise Refused(f"{verb}: a webhook denied the request")
            answer = await target(*parts)
            if happens is Fault.KILLED_AFTER:
                raise Killed
            if happens is Fault.ANSWER_LOST:
                raise Unavailable(f"{verb}: no answer")
            return answer

        return send


def _object(parts: tuple[Any, ...]) -> str:
    """Kind and name of the object that a request is about."""
    if isinstance(parts[0], dict):
        return f"{parts[0]['kind']}/{parts[0]['metadata']['name']}"
    kind: Kind = parts[0]
    name = parts[1]["metadata"]["name"] if isinstance(parts[1], dict) else parts[2]
    return f"{kind.kind}/{name}"
