"""Judge of a run: starts its replicas and their router, wakes them for scoring, replaces lost ones, and stops them."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import ray
from omegaconf import DictConfig
from ray.exceptions import RayActorError
from verl.single_controller.ray.base import RayResourcePool, split_resource_pool
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.device import get_resource_name
from verl.workers.config import HFModelConfig

from verl_omni.trainer.replicas.actor_nodes import start_judge_router
from verl_omni.trainer.replicas.replica_launcher import RayLauncher
from verl_omni.trainer.replicas.replica_pool import ReplicaPool
from verl_omni.trainer.rewards.judge_members import JudgeMembers, JudgeRouting
from verl_omni.trainer.settings import judge_settings, pool_settings
from verl_omni.workers.rollout.vllm_rollout.judge.replica import JudgeReplica

STOP_SECONDS = 60.0  # timeout for the engines to shut down


class JudgeServers:
    """The replicas of `reward.reward_model`, behind one address.

    Attributes:
        address: host:port of the router, which the scorers get as `reward_router_address`.
        pool: replaces lost replicas, and adds and removes replicas with the nodes, for a judge on dedicated
            accelerators; otherwise None.
    """

    pool: ReplicaPool[JudgeMembers] | None = None

    def __init__(self, config: DictConfig, trainer_pool: RayResourcePool) -> None:
        """Start them.

        Raises:
            ReplicaCallFailed: a replica did not start, or not within `reward.reward_model.deadline_seconds`.
        """
        model = config.reward.reward_model
        self._sleeps = judge_settings.sleeps(config)
        engine = omega_conf_to_dataclass(model.rollout)
        hugging_face = HFModelConfig(path=model.model_path)
        per_node = config.trainer.n_gpus_per_node if judge_settings.shared(config) else model.n_gpus_per_node

        def make(rank: int) -> JudgeReplica:
            return JudgeReplica(
                rank,
                engine,
                hugging_face,
                per_node,
                node_resource=model.node_resource,
                ray_resource=model.ray_resource,
                deadline=model.deadline_seconds,
            )

        self._replicas = [make(rank) for rank in range(judge_settings.replicas(config))]
        if judge_settings.shared(config):
            pools = split_resource_pool(trainer_pool, split_size=pool_settings.replica_size(model.rollout))
            starting = [replica.init_colocated(pool) for replica, pool in zip(self._replicas, pools, strict=True)]
        else:
            starting = [replica.init_standalone() for replica in self._replicas]
        _run_all(starting)
        self._router, self.address = start_judge_router(
            [replica.server_address for replica in self._replicas],
            f"the judge {model.model_path}",
            model.deadline_seconds,
            elastic=judge_settings.elastic(config),
        )
        if judge_settings.elastic(config):
            self.pool = self._pool(config, make)
        self.sleep()

    def _pool(self, config: DictConfig, make: Callable[[int], JudgeReplica]) -> ReplicaPool[JudgeMembers]:
        members = JudgeMembers(JudgeRouting(self._router), list(self._replicas))
        launcher = RayLauncher(
            make,
            places=lambda nodes: judge_settings.room(config, nodes, str(get_resource_name())),
            requests=lambda replica: [self._router.requests.remote(replica.server_address)],
            deadline=config.reward.reward_model.deadline_seconds,
            pinned=config.reward.reward_model.node_resource is not None,
        )
        return ReplicaPool(
            members,
            launcher,
            first_rank=len(self._replicas),
            looked=members.looked,
            noun="judge replica",
            failing="was lost within seconds",
        )

    def wake_up(self) -> None:
        """Load the weights again, if the judge sleeps between batches."""
        if self._sleeps:
            _run_all([replica.wake_up() for replica in self._replicas])

    def sleep(self) -> None:
        """Free the accelerators' memory, if the judge sleeps between batches."""
        if self._sleeps:
            _run_all([replica.sleep() for replica in self._replicas])

    def stop(self) -> None:
        """Stop the engines. Works after a failure too; an engine that does not stop in time is killed."""
        replicas = self._replicas if self.pool is None else self.pool.stop()
        servers = [server for replica in replicas for server in replica.servers]
        endings = {server.shutdown.remote(): server for server in servers}
        ended, silent = ray.wait(list(endings), num_returns=len(endings), timeout=STOP_SECONDS)
        for ending in silent:
            ray.kill(endings[ending])
        for ending in ended:
            with contextlib.suppress(RayActorError):  # it has exited already
                ray.get(ending)


def _run_all(calls: Sequence[Coroutine[Any, Any, None]]) -> None:
    async def gathered() -> None:
        await asyncio.gather(*calls)

    asyncio.run(gathered())
