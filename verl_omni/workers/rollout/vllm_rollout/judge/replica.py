"""`JudgeReplica`: handle of one replica of a judge, with a deadline on every call to its servers."""

from __future__ import annotations

from typing import Any

import ray
from typing_extensions import override
from verl.single_controller.base import Worker
from verl.single_controller.ray import RayClassWithInitArgs
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer

from verl_omni.workers.rollout.vllm_rollout.driver.deadline_replica import DeadlineReplica

WORKER_EXTENSION = "verl_omni.workers.rollout.vllm_rollout.judge.worker_extension.JudgeWorkerExtension"


class JudgeServer(vLLMHttpServer):  # type: ignore[misc]
    """HTTP server of one judge replica, with vLLM's routes such as /v1/chat/completions."""

    @override
    def _get_worker_extension_cls(self) -> str:
        return WORKER_EXTENSION

    async def shutdown(self) -> None:
        """Stop the engine's process."""
        self.engine.shutdown()


class AcceleratorHolder(Worker):  # type: ignore[misc]
    """Reserves one accelerator of a replica in Ray; the server's engine computes on it."""


class JudgeReplica(DeadlineReplica):
    """verl's replica of a reward model.

    Args:
        node_resource: custom Ray resource of the nodes that a replica with accelerators of its own may run on.
        ray_resource: Ray resource that these accelerators count as; None: that of the trainer's.
        deadline: seconds for a reply of the servers.
    """

    def __init__(
        self,
        replica_rank: int,
        config: Any,
        model_config: Any,
        gpus_per_node: int,
        *,
        node_resource: str | None,
        ray_resource: str | None,
        deadline: float,
    ) -> None:
        super().__init__(replica_rank, config, model_config, gpus_per_node, is_reward_model=True)
        self.server_class = ray.remote(JudgeServer)
        self._node_resource, self._ray_resource, self._deadline = node_resource, ray_resource, deadline

    @property
    @override
    def deadline(self) -> float:
        return self._deadline

    @property
    @override
    def described(self) -> str:
        return f"{self.replica_rank} of the judge"

    @override
    async def init_standalone(self) -> None:
        """Start the replica on accelerators of its own."""
        self.place()
        await self.await_reply("start", self.launch_servers())

    def place(self) -> None:
        """Reserve the accelerators of the replica; waits until a node has them."""
        self.start_workers(f"judge_{self.replica_rank}", self._node_resource, self._ray_resource)

    @override
    async def init_colocated(self, resource_pool: Any) -> None:
        """Start the replica on accelerators of the trainer."""
        await self.await_reply("start", super().init_colocated(resource_pool))

    @override
    def get_ray_class_with_init_args(self) -> RayClassWithInitArgs:
        return RayClassWithInitArgs(cls=ray.remote(AcceleratorHolder))
