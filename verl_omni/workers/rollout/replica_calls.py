"""Calls to rollout replicas: deadlines, and errors that name the replica."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from ray.exceptions import RayActorError, RayError

from verl_omni.utils.root_cause import describe_error

T = TypeVar("T")
ROUTER_SECONDS = 120.0  # its process may still import when it is asked for the first time
ROUTER = "the router of the rollout replicas, an actor on the trainer's nodes,"


class ReplicaError(RuntimeError):
    """The engine of a replica failed a request.

    Attributes:
        replica_rank: rank of the replica.
        global_steps: version of its weights; None before the first update.
        reason: the engine's error.
    """

    def __init__(self, replica_rank: int, global_steps: int | None, reason: str) -> None:
        # Exactly the constructor's arguments: unpickling an exception calls its class with `args`.
        super().__init__(replica_rank, global_steps, reason)
        self.replica_rank = replica_rank
        self.global_steps = global_steps
        self.reason = reason

    def __str__(self) -> str:
        weights = "its first weights" if self.global_steps is None else f"weights of version {self.global_steps}"
        return f"rollout replica {self.replica_rank}, with {weights}: {self.reason}"


class EngineDead(ReplicaError):
    """The engine of a replica has ended, so that every other request of the replica fails too."""


class ReplicaCallFailed(RuntimeError):
    """A call to a replica failed: it raised, it is gone, or it did not reply in time. The cause is kept."""


class ReplicaLost(ReplicaCallFailed):
    """A replica or its engine is gone, or sent nothing for `rollout.deadline_seconds`. Another one can do its work.

    Attributes:
        replica: its address.
    """

    def __init__(self, replica: str, reason: str) -> None:
        # Exactly the constructor's arguments: unpickling an exception calls its class with `args`.
        super().__init__(replica, reason)
        self.replica = replica
        self.reason = reason

    def __str__(self) -> str:
        return f"replica {self.replica}: {self.reason}"


async def await_reply(reply: Awaitable[T], *, replica: object, call: str, deadline: float) -> T:
    """Wait for a replica's reply.

    Args:
        replica: its rank or its address.
        call: what the replica was called for, for the error message.
        deadline: seconds; Ray itself waits forever for a process that is stopped.

    Raises:
        ReplicaCallFailed: the replica raised, is gone, or did not reply in time.
    """
    waiting = asyncio.timeout(deadline)
    try:
        async with waiting:
            return await reply
    except (TimeoutError, RayError) as error:  # a TimeoutError may be the replica's own
        reason = f"no reply within {deadline:g} s" if waiting.expired() else describe_error(error)
        raise ReplicaCallFailed(f"replica {replica}, {call}: {reason}") from error


async def await_router(reply: Awaitable[T]) -> T:
    """Wait for the answer of the router, which chooses a replica for each request.

    Raises:
        ReplicaCallFailed: it is gone, or did not answer within `ROUTER_SECONDS`.
    """
    waiting = asyncio.timeout(ROUTER_SECONDS)
    try:
        async with waiting:
            return await reply
    except TimeoutError as error:
        raise silent_router() from error
    except RayActorError as error:
        raise lost_router(error) from error


def silent_router() -> ReplicaCallFailed:
    """PURE: the error of a router that does not answer."""
    return ReplicaCallFailed(f"{ROUTER} did not answer within {ROUTER_SECONDS:g} s")


def lost_router(error: BaseException) -> ReplicaCallFailed:
    """PURE: the error of a router whose process has ended."""
    return ReplicaCallFailed(f"{ROUTER} is gone: {describe_error(error)}")
