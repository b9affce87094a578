"""Weight updates of standalone replicas, which may join, fail and leave while a run goes on.

A replica serves only with the current version: it joins, and comes back, by an update. One that fails an update leaves
the router before another request could reach its older weights, and the others continue.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from verl_omni.trainer.replicas.replica_reports import JoinTimes, ReplicaReports, versions_of_hosts
from verl_omni.trainer.replicas.replica_transport import ReplicaTransport
from verl_omni.weight_sync.errors import TooFewReplicas

logger = logging.getLogger(__name__)
REASONS_KEPT = 8
WAIT_SECONDS = 1.0  # between two calls of `waited`


@dataclass
class ReplicaUpdates:
    """The parts of verl's `CheckpointEngineManager` that the trainer uses, for replicas on separate nodes.

    Thread-safe: the trainer updates, and `ReplicaPool` adds and removes replicas.

    Attributes:
        replicas: those that have the version of the last update.
        least: `rollout.min_replicas`.
        patience: seconds that an update waits for `least` replicas (`rollout.deadline_seconds`).
        reports: what hears of replicas that join and leave.
        left: replicas that serve no more, whose processes are still to be stopped.
        clock: seconds.
        waited: called each second or so while an update waits for replicas, in its thread; its error ends the update.
    """

    transport: ReplicaTransport
    replicas: list[Any]
    least: int
    patience: float
    reports: ReplicaReports = field(default_factory=ReplicaReports)
    left: list[Any] = field(default_factory=list)
    clock: Callable[[], float] = time.monotonic
    waited: Callable[[], None] = lambda: None
    _joining: list[Any] = field(default_factory=list)
    _started: dict[int, tuple[JoinTimes, float]] = field(default_factory=dict)  # by rank, with the end of the start
    _held: dict[int, int] = field(default_factory=dict)  # version of each replica in `replicas`, by rank
    _served: set[int] = field(default_factory=set)  # ranks of lost replicas that an update had reached
    _reasons: list[str] = field(default_factory=list)
    _generating: int | None = None
    _changed: threading.Condition = field(default_factory=lambda: threading.Condition(threading.RLock()))

    def update_weights(self, global_steps: int) -> None:
        """Send the policy to all replicas at the same time, also to those that join.

        Raises:
            TooFewReplicas: fewer than `least` replicas have this version, `patience` after the first were sent it.
            Any error of the trainer's ranks, and of `waited`.
        """
        with self._changed:
            self._send(global_steps, [*self.replicas, *self._joining])
            if len(self.replicas) < self.least:
                self.reports.waiting(len(self.replicas), self.least)
        until = self.clock() + self.patience  # also for replicas that join and fail, one after the other
        while not self._enough(global_steps, until):
            self.waited()

    def _enough(self, version: int, until: float) -> bool:
        """Wait a moment for replicas that join, and send them the version. Returns whether enough have it."""
        with self._changed:
            if len(self.replicas) < self.least:
                if (left := until - self.clock()) <= 0:
                    raise TooFewReplicas(
                        f"{len(self.replicas)} rollout replicas are left, rollout.min_replicas is {self.least}, and "
                        f"not enough others joined within {self.patience:g} s (rollout.deadline_seconds): "
                        f"{'; '.join(self._reasons) or 'none was lost'}"
                    )
                if self._changed.wait_for(lambda: self._joining, min(left, WAIT_SECONDS)):
                    self._send(version, list(self._joining))
            return len(self.replicas) >= self.least

    def sleep_replicas(self) -> None:
        """Nothing: a standalone replica does not share its accelerators with the trainer."""

    def versions(self) -> list[int]:
        """Weight version that each replica reports; a replica that does not answer stops serving."""
        with self._changed:
            versions, failed = self.transport.versions(self.replicas)
            self._drop(
                [(replica, failed[replica.replica_rank]) for replica in self.replicas if replica.replica_rank in failed]
            )
            return list(versions.values())

    def versions_by_host(self, places: Mapping[str, int]) -> dict[str, int]:
        """Lowest version that an update has brought to the replicas of each host on which all serve.

        A host is identified by the address of its node (on Kubernetes, of its pod). Sends no request to a replica.

        Args:
            places: see `versions_of_hosts`.
        """
        with self._changed:
            held = [(replica, self._held.get(replica.replica_rank)) for replica in self.replicas]
            return versions_of_hosts(
                [(replica.server_address, version) for replica, version in held if version is not None], places
            )

    def all(self) -> list[Any]:
        """The replicas that serve, and those that join with the next update."""
        with self._changed:
            return [*self.replicas, *self._joining]

    def served(self, replica: Any) -> bool:
        """Whether an update has ever reached a replica."""
        with self._changed:
            return replica in self.replicas or replica.replica_rank in self._served

    def join(self, replica: Any, times: JoinTimes) -> None:
        """Add a started replica, which serves once an update has reached it."""
        with self._changed:
            self._joining.append(replica)
            self._started[replica.replica_rank] = (times, self.clock())
            self._changed.notify_all()

    def lose(self, replica: Any, reason: str) -> None:
        """Remove a lost replica."""
        with self._changed:
            if replica in self.all():
                self._drop([(replica, reason)])

    def leave(self, replica: Any) -> bool:
        """See `Members`; an update may have lost it while the pool looked at the nodes."""
        with self._changed:
            if replica not in self.all():
                return False
            self.transport.remove([replica])
            self._forget([replica])
            self.reports.leaving(replica.replica_rank)
            return True

    def take_left(self) -> list[Any]:
        """Replicas whose processes must be stopped; each is returned once."""
        with self._changed:
            left = self.left
            self.left = []
            return left

    @contextmanager
    def generating(self, version: int) -> Iterator[None]:
        """While the weights of the trainer do not change, `admit` may send them, as this version."""
        with self._changed:
            self._generating = version
        try:
            yield
        finally:
            with self._changed:
                self._generating = None

    def while_lost(self, action: Callable[[], None]) -> None:
        """Run `action` if no replica serves; none joins during it. Does nothing while one receives weights."""
        if not self.replicas and self._changed.acquire(blocking=False):
            try:
                if not self.replicas:
                    action()
            finally:
                self._changed.release()

    def admit(self) -> None:
        """During `generating`, let joining replicas serve, and replicas that left the router and answer again.

        At any time, those that left the router and do not answer are lost.
        """
        with self._changed:
            serving = self.transport.serving()
            outside = [replica for replica in self.replicas if replica.server_address not in serving]
            if self._generating is None:
                failed = self.transport.unreachable(outside)
                gone = [replica for replica in outside if replica.replica_rank in failed]
                self._drop([(replica, f"it left the router: {failed[replica.replica_rank]}") for replica in gone])
            elif waiting := [*outside, *self._joining]:
                self._send(self._generating, waiting)
            elif not self.replicas:
                self.reports.waiting(0, self.least)

    def looked(self, queued: int, places: Mapping[str, int]) -> None:
        """Called by the pool after each poll of the nodes: lets replicas serve, and reports.

        Args:
            queued: number of samples that are not generated yet.
            places: see `versions_of_hosts`.
        """
        self.admit()
        self.reports.versions(self.versions_by_host(places))
        self.reports.queued(queued)

    def _send(self, version: int, replicas: Sequence[Any]) -> None:
        """Send a version to replicas: those that have it serve, and the others leave."""
        failed = self.transport.unreachable(replicas)
        targets = [replica for replica in replicas if replica.replica_rank not in failed]
        if targets:
            failed |= self.transport.send(version, targets)
        self._drop(
            [
                (replica, f"version {version} did not reach it: {failed[replica.replica_rank]}")
                for replica in replicas
                if replica.replica_rank in failed
            ]
        )
        reached = [replica for replica in targets if replica.replica_rank not in failed]
        self._held |= {replica.replica_rank: version for replica in reached}
        joined = [replica for replica in reached if replica in self._joining]
        self._joining = [replica for replica in self._joining if replica not in joined]
        self.replicas += joined
        serving = self.transport.serving()
        if back := [replica for replica in reached if replica.server_address not in serving]:
            self.transport.add(back)
            logger.warning("replicas %s have version %d and serve", [replica.replica_rank for replica in back], version)
        for replica in joined:
            times, since = self._started.pop(replica.replica_rank)
            self.reports.joined(replica.replica_rank, version, replace(times, sync_s=self.clock() - since))
        self.reports.serving(len(self.replicas))

    def _drop(self, lost: Sequence[tuple[Any, str]]) -> None:
        if not lost:
            return
        gone = [replica for replica, _ in lost]
        # From the router first: no request may reach an older version.
        self.transport.remove(gone)
        self._served |= {replica.replica_rank for replica in gone if replica in self.replicas}
        self._forget(gone)
        self.left += gone
        for replica, reason in lost:
            message = f"replica {replica.replica_rank} serves no more: {reason}"
            self._reasons = [*self._reasons, message][-REASONS_KEPT:]
            self.reports.lost(message)

    def _forget(self, gone: Sequence[Any]) -> None:
        self.replicas = [replica for replica in self.replicas if replica not in gone]
        self._joining = [replica for replica in self._joining if replica not in gone]
        for replica in gone:
            self._held.pop(replica.replica_rank, None)
            self._started.pop(replica.replica_rank, None)
        self.reports.serving(len(self.replicas))


def weight_updates(rollout: Any, workers: Any, servers: Any) -> Any:
    """The sender of the trainer's weights to the replicas."""
    if rollout.nnodes > 0:
        from verl_omni.workers.rollout.network_settings import network_deadline

        transport = ReplicaTransport(workers, servers.global_load_balancer, network_deadline(rollout))
        replicas = list(servers.get_replicas())
        return ReplicaUpdates(transport, replicas, rollout.min_replicas, rollout.deadline_seconds)
    from verl.checkpoint_engine import CheckpointEngineManager
    from verl.utils.config import omega_conf_to_dataclass

    return CheckpointEngineManager(
        config=omega_conf_to_dataclass(rollout.checkpoint_engine), actor_wg=workers, replicas=servers.get_replicas()
    )
