"""`JudgeReplica`: handle of one replica of a judge, with a deadline on every call to its servers."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import ray
from typing_extensions import override
from verl.single_controller.base import Worker
from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from verl.utils.device import get_device_name
from verl.workers.rollout.replica import RolloutMode
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMReplica

from verl_omni.workers.rollout.replica_calls import await_reply
from verl_omni.workers.rollout.vllm_rollout.judge.server import JudgeServer


class AcceleratorHolder(Worker):  # type: ignore[misc]
    """Reserves one accelerator of a replica in Ray; the server's engine computes on it."""


class JudgeReplica(vLLMReplica):  # type: ignore[misc]
    """verl's replica of a reward model.

    Args:
        node_resource: custom Ray resource of the nodes that a replica with accelerators of its own may run on.
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
        deadline: float,
    ) -> None:
        super().__init__(replica_rank, config, model_config, gpus_per_node, is_reward_model=True)
        self.server_class = ray.remote(JudgeServer)
        self._node_resource, self._deadline = node_resource, deadline

    @override
    async def init_standalone(self) -> None:
        """Start the replica on accelerators of its own."""
        self.rollout_mode = RolloutMode.STANDALONE
        name = f"judge_{self.replica_rank}"
        self.resource_pool = RayResourcePool(
            process_on_nodes=[self.gpus_per_replica_node] * self.nnodes, use_gpu=True, name_prefix=name,
            max_colocate_count=1, accelerator_type=self._node_resource,
        )  # fmt: skip
        self.workers = RayWorkerGroup(
            resource_pool=self.resource_pool, ray_cls_with_init=self.get_ray_class_with_init_args(),
            bin_pack=False, name_prefix=name, use_gpu=True, device_name=get_device_name(),
        ).workers  # fmt: skip
        await self._await_reply("start", self.launch_servers())

    @override
    async def init_colocated(self, resource_pool: Any) -> None:
        """Start the replica on accelerators of the trainer."""
        await self._await_reply("start", super().init_colocated(resource_pool))

    @override
    def get_ray_class_with_init_args(self) -> RayClassWithInitArgs:
        return RayClassWithInitArgs(cls=ray.remote(AcceleratorHolder))

    @override
    async def sleep(self) -> None:
        await self._await_reply("sleep", super().sleep())

    @override
    async def wake_up(self) -> None:
        await self._await_reply("wake_up", super().wake_up())

    async def _await_reply(self, call: str, reply: Awaitable[Any]) -> Any:
        return await await_reply(reply, replica=f"{self.replica_rank} of the judge", call=call, deadline=self._deadline)
