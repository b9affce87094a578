"""Errors that cross from one process to another."""

from __future__ import annotations


class ReplicaError(RuntimeError):
    """A rollout replica failed a request.

    Attributes:
        replica_rank: which replica.
        global_steps: version of its weights; None before the first update.
        reason: what its engine said.
    """

    def __init__(self, replica_rank: int, global_steps: int | None, reason: str) -> None:
        # Exactly the arguments: whoever unpickles an exception calls its class with `args`.
        super().__init__(replica_rank, global_steps, reason)
        self.replica_rank, self.global_steps, self.reason = replica_rank, global_steps, reason

    def __str__(self) -> str:
        weights = "its first weights" if self.global_steps is None else f"weights of version {self.global_steps}"
        return f"rollout replica {self.replica_rank}, with {weights}: {self.reason}"
