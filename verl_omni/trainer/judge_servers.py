"""Judge of a run: starts its replicas and their router, wakes them for scoring, and stops them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Sequence
from typing import Any

import ray
from omegaconf import DictConfig
from ray.exceptions import RayActorError
from verl.single_controller.ray.base import RayResourcePool, split_resource_pool
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.config import HFModelConfig

from verl_omni.trainer import judges
from verl_omni.trainer.actor_nodes import start_judge_router
from verl_omni.workers.rollout.vllm_rollout.judge.replica import JudgeReplica

STOP_SECONDS = 60.0  # timeout for the engines to shut down


class JudgeServers:
    """The replicas of `reward.reward_model`, behind one address.

    Attributes:
        address: host:port of the router, which the scorers get as `reward_router_address`.
    """

    def __init__(self, config: DictConfig, trainer_pool: RayResourcePool) -> None:
        """Start them.

        Raises:
            ReplicaCallFailed: a replica did not start, or not within `reward.reward_model.deadline_seconds`.
        """
        model = config.reward.reward_model
        self._sleeps = judges.sleeps(config)
        engine, hugging_face = omega_conf_to_dataclass(model.rollout), HFModelConfig(path=model.model_path)
        per_node = config.trainer.n_gpus_per_node if judges.shared(config) else model.n_gpus_per_node
        self.replicas = [
            JudgeReplica(
                rank, engine, hugging_face, per_node, node_resource=model.node_resource,
                deadline=model.deadline_seconds,
            )
            for rank in range(judges.replicas(config))
        ]  # fmt: skip
        if judges.shared(config):
            pools = split_resource_pool(trainer_pool, split_size=judges.replica_size(model))
            starting = [each.init_colocated(pool) for each, pool in zip(self.replicas, pools, strict=True)]
        else:
            starting = [each.init_standalone() for each in self.replicas]
        _run_all(starting)
        self._router, self.address = start_judge_router(
            [each.server_address for each in self.replicas], f"the judge {model.model_path}", model.deadline_seconds
        )  # fmt: skip
        self.sleep()

    def wake_up(self) -> None:
        """Load the weights again, if the judge sleeps between batches."""
        if self._sleeps:
            _run_all([each.wake_up() for each in self.replicas])

    def sleep(self) -> None:
        """Free the accelerators' memory, if the judge sleeps between batches."""
        if self._sleeps:
            _run_all([each.sleep() for each in self.replicas])

    def stop(self) -> None:
        """Stop the engines. Works after a failure too; an engine that does not stop in time is killed."""
        servers = [server for each in self.replicas for server in each.servers]
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
