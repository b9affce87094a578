"""Replicas of a judge on dedicated accelerators, which may fail, leave and join during a run."""

import contextlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from verl_omni.trainer.replicas.replica_launcher import ANSWER_SECONDS
from verl_omni.trainer.replicas.replica_reports import JoinTimes, ReplicaReports, versions_of_hosts
from verl_omni.utils.root_cause import describe_error


@dataclass
class JudgeRouting:
    """Calls to the judge's router and replicas. Each has a deadline.

    Attributes:
        router: actor of JudgeRouter.
    """

    router: Any

    def add(self, address: str) -> None:
        """Send questions to another replica too."""
        self._answer(self.router.add.remote(address))

    def remove(self, address: str, reason: str) -> None:
        """Send a replica no more questions."""
        self._answer(self.router.remove.remote(address, reason))

    def failed(self) -> dict[str, str]:
        """Addresses that the router no longer uses, with the reason."""
        return dict(self._answer(self.router.failed.remote()))

    def peak(self) -> int:
        """Largest number of questions without an answer since the last call."""
        return int(self._answer(self.router.peak.remote()))

    def dead(self, replicas: list[Any]) -> dict[int, str]:
        """Rank and reason of each replica with an ended process. An actor that is only busy is not dead."""
        import ray

        actors = [
            (replica.replica_rank, actor) for replica in replicas for actor in (*replica.servers, *replica.workers)
        ]
        asked = {actor.__ray_ready__.remote(): rank for rank, actor in actors}
        answered, _ = ray.wait(list(asked), num_returns=len(asked), timeout=ANSWER_SECONDS) if asked else ([], [])
        reasons: dict[int, str] = {}
        for answer in answered:
            try:
                ray.get(answer)
            except ray.exceptions.RayActorError as error:
                reasons[asked[answer]] = describe_error(error)
        return reasons

    def _answer(self, asked: Any) -> Any:
        import ray

        return ray.get(asked, timeout=ANSWER_SECONDS)


@dataclass
class JudgeMembers:
    """The `Members` of a judge's pool.

    Unlike a rollout replica, a judge replica serves as soon as it has started: it gets no weight updates.

    Attributes:
        serving: replicas that get questions.
        left: replicas that serve no more, whose processes are still to be stopped.
        reports: what hears of replicas that join and leave.
    """

    routing: JudgeRouting
    serving: list[Any]
    reports: ReplicaReports = field(default_factory=ReplicaReports)
    left: list[Any] = field(default_factory=list)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def all(self) -> list[Any]:
        """The replicas that get questions."""
        with self._lock:
            return list(self.serving)

    def served(self, replica: Any) -> bool:
        """Whether a replica gets questions; for a lost one, it is unknown whether it answered any."""
        with self._lock:
            return replica in self.serving

    def join(self, replica: Any, times: JoinTimes) -> None:
        """Send a started replica questions.

        Raises:
            Exception: the router did not answer, or the report could not be written; the replica gets no questions.
        """
        with self._lock:
            try:
                self.routing.add(replica.server_address)
                self.reports.joined(replica.replica_rank, 0, times)
            except Exception as error:
                with contextlib.suppress(Exception):  # it refuses connections soon, which the router finds out itself
                    self.routing.remove(replica.server_address, f"it did not join: {error}")
                raise
            self.serving.append(replica)

    def lose(self, replica: Any, reason: str) -> None:
        """Remove a replica that is lost or does not answer; its questions go to other replicas."""
        with self._lock:
            if replica in self.serving:
                self.routing.remove(replica.server_address, reason)
                self.serving.remove(replica)
                self.left.append(replica)
                self.reports.lost(f"judge replica {replica.replica_rank} serves no more: {reason}")

    def leave(self, replica: Any) -> bool:
        """Send a replica no more questions; it may answer those that it has. Returns whether it served."""
        with self._lock:
            if replica not in self.serving:
                return False
            self.routing.remove(replica.server_address, "its node is being removed")
            self.serving.remove(replica)
            self.reports.leaving(replica.replica_rank)
            return True

    def take_left(self) -> list[Any]:
        """Replicas whose processes must be stopped; each is returned once."""
        with self._lock:
            left = self.left
            self.left = []
            return left

    def looked(self, places: Mapping[str, int]) -> None:
        """Called by the pool after each poll of the nodes: drops refusing and ended replicas, and reports metrics.

        The others serve weight version 0, because a judge's weights never change. The number of waiting questions is
        reported as the peak since the last poll, because a judge may answer a whole batch between two polls.

        Args:
            places: see `versions_of_hosts`.
        """
        with self._lock:
            failed = self.routing.failed()
            dead = self.routing.dead(self.serving)
            for replica in list(self.serving):
                reason = dead.get(replica.replica_rank) or failed.get(replica.server_address)
                if reason:
                    self.lose(replica, reason)
            self.reports.versions(versions_of_hosts([(replica.server_address, 0) for replica in self.serving], places))
            self.reports.queued(self.routing.peak())
