"""Weight updates of standalone replicas: one that fails leaves the router, and the others continue."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

from verl_omni.utils.root_cause import describe_error
from verl_omni.weight_sync.errors import TooFewReplicas

logger = logging.getLogger(__name__)


@dataclass
class ReplicaUpdates:
    """What the trainer uses of verl's `CheckpointEngineManager`, for replicas on nodes of their own.

    Attributes:
        workers: RayWorkerGroup of DiffusionActorRolloutWorker.
        router: actor that chooses a replica for each request.
        replicas: those that serve; one that an update did not reach is removed.
        least: `rollout.min_replicas`.
        deadline: seconds to wait for a replica's answer, besides the deadlines of the transfer itself.
    """

    workers: Any
    router: Any
    replicas: list[Any]
    least: int
    deadline: float
    _lost: list[str] = field(default_factory=list)

    def update_weights(self, global_steps: int) -> dict[str, list[str]]:
        """Send the policy to all replicas at the same time.

        Returns:
            `removed`: a message for each replica that this update did not reach, and that serves no more.

        Raises:
            TooFewReplicas: fewer than `least` replicas have this version.
            Any error of the trainer's ranks.
        """
        import ray

        failed = self._unreachable()
        targets = [
            (each, worker) for each in self.replicas if each.replica_rank not in failed for worker in each.workers
        ]
        if targets:
            address = self.workers.open_weight_stream()
            receiving = [
                worker.receive_weights.remote(address, number, global_steps)
                for number, (_, worker) in enumerate(targets)
            ]
            unconfirmed = ray.get(self.workers.send_to_replicas(global_steps, len(targets)))[0]
            for number, reason in unconfirmed.items():
                failed.setdefault(targets[number][0].replica_rank, reason)
            # An error of the replica itself says more than what the trainer saw of it.
            for number, reason in self._errors(receiving).items():
                failed[targets[number][0].replica_rank] = reason
        messages = self._remove(failed, global_steps)
        self._restore(global_steps)
        return {"removed": messages}

    def sleep_replicas(self) -> None:
        """Nothing: a standalone replica does not share its accelerators with the trainer."""

    def _unreachable(self) -> dict[int, str]:
        """Rank and reason of each replica with a worker that does not answer."""
        asked = [(each.replica_rank, worker.ready.remote()) for each in self.replicas for worker in each.workers]
        errors = self._errors([answer for _, answer in asked])
        return {asked[number][0]: reason for number, reason in errors.items()}

    def _errors(self, answers: list[Any]) -> dict[int, str]:
        """Why the answers that failed, or did not arrive within the deadline, did; by their place."""
        import ray

        arrived, _ = ray.wait(answers, num_returns=len(answers), timeout=self.deadline)
        found = {}
        for number, answer in enumerate(answers):
            if answer not in arrived:
                found[number] = f"no answer within {self.deadline:g} s"
                continue
            try:
                ray.get(answer)
            except ray.exceptions.RayError as error:
                found[number] = describe_error(error)
        return found

    def _remove(self, failed: dict[int, str], version: int) -> list[str]:
        import ray

        leaving = [each for each in self.replicas if each.replica_rank in failed]
        if not leaving:
            return []
        # From the router first: no request may reach an older version.
        ray.get(self.router.remove_servers.remote([each.server_address for each in leaving]), timeout=self.deadline)
        self.replicas = [each for each in self.replicas if each not in leaving]
        messages = [
            f"version {version} did not reach replica {each.replica_rank}, which serves no more: "
            f"{failed[each.replica_rank]}"
            for each in leaving
        ]
        self._lost += messages
        if len(self.replicas) < self.least:
            raise TooFewReplicas(
                f"{len(self.replicas)} rollout replicas are left, and rollout.min_replicas is {self.least}: "
                + "; ".join(self._lost)
            )
        return messages

    def _restore(self, version: int) -> None:
        """Let replicas serve again that left the router as silent, and have this version now."""
        import ray

        serving = ray.get(self.router.get_all_servers.remote(), timeout=self.deadline)
        back = [each for each in self.replicas if each.server_address not in serving]
        if back:
            servers = {each.server_address: each.server_handle for each in back}
            ray.get(self.router.add_servers.remote(servers), timeout=self.deadline)
            logger.warning("replicas %s have version %d and serve again", [each.replica_rank for each in back], version)


def weight_updates(rollout: Any, workers: Any, servers: Any) -> Any:
    """What sends the trainer's weights to the replicas."""
    if rollout.nnodes > 0:
        from verl_omni.workers.rollout.network_settings import network_deadline

        found = list(servers.get_replicas())
        least, deadline = rollout.min_replicas, network_deadline(rollout)
        return ReplicaUpdates(workers, servers.global_load_balancer, found, least, deadline)
    from verl.checkpoint_engine import CheckpointEngineManager
    from verl.utils.config import omega_conf_to_dataclass

    return CheckpointEngineManager(
        config=omega_conf_to_dataclass(rollout.checkpoint_engine), actor_wg=workers, replicas=servers.get_replicas()
    )
