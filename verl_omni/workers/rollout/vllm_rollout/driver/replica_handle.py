"""`vLLMOmniReplica`: handle of one rollout replica, with a deadline on every call to its servers."""

import logging
from typing import Any

import ray
from typing_extensions import override
from verl.single_controller.ray import RayClassWithInitArgs
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.device import get_device_name, get_resource_name
from verl.utils.import_utils import load_class_from_fqn

from verl_omni.workers.rollout import cpu_settings
from verl_omni.workers.rollout.vllm_rollout.driver.deadline_replica import DeadlineReplica
from verl_omni.workers.rollout.vllm_rollout.server.rollout_server import vLLMOmniHttpServer

logger = logging.getLogger(__name__)
# Concurrent calls of a server actor, as in Ray Serve (`ASYNC_CONCURRENCY`). Ray's default is 1000, verl's no higher.
CALLS_AT_A_TIME = 1_000_000
# Loaded by name, as verl loads the colocated worker: the driver does not import the training worker's code.
REPLICA_WORKER = "verl_omni.workers.rollout.vllm_rollout.training_worker.replica_worker.ReplicaWorker"


class vLLMOmniReplica(DeadlineReplica):
    """Handle of one replica's servers, which must fit in one node.

    Each call raises `ReplicaCallFailed`, which names the replica, after `rollout.deadline_seconds` without a reply.
    """

    def __init__(
        self,
        replica_rank: int,
        config: Any,
        model_config: Any,
        gpus_per_node: int = 8,
        is_reward_model: bool = False,
        is_teacher_model: bool = False,
        name_suffix: str = "",
    ) -> None:
        config = omega_conf_to_dataclass(config)
        if get_device_name() == "cpu":
            for message in cpu_settings.messages(config):
                logger.warning(message)
            config = cpu_settings.fit(config)
        super().__init__(
            replica_rank, config, model_config, gpus_per_node, is_reward_model, is_teacher_model, name_suffix
        )
        self.server_class = ray.remote(vLLMOmniHttpServer)

    @property
    @override
    def deadline(self) -> float:
        return float(self.config.deadline_seconds)

    @property
    @override
    def described(self) -> str:
        return str(self.replica_rank)

    @property
    @override
    def max_concurrency(self) -> int:
        """Calls that a server handles at a time.

        Requests wait in the server while it sleeps, holds them, or gets weights. The call that ends this must not wait
        behind them.
        """
        return CALLS_AT_A_TIME

    def _validate_launch_requirements(self) -> None:
        """Nothing beyond what the parent checks."""

    @override
    async def init_standalone(self) -> None:
        """Start the replica on dedicated accelerators, on nodes with `rollout.node_resource` if it is set.

        On a CPU, Ray counts logical ones: `ray.init(num_gpus=...)`.
        """
        resource = self.config.ray_resource or get_resource_name()
        most = max((node["Resources"].get(resource, 0.0) for node in ray.nodes() if node["Alive"]), default=0.0)
        if most < self.gpus_per_replica_node:
            logger.warning(
                "replica %s waits for accelerators: it needs %s %s on one node (rollout.tensor_model_parallel_size x "
                "data_parallel_size), and no node of this Ray cluster has more than %d%s",
                self.replica_rank,
                self.gpus_per_replica_node,
                resource,
                most,
                ": on a CPU, write ray.init(num_gpus=...)" if get_device_name() == "cpu" else "",
            )
        self.place()
        await self.launch_servers()

    def place(self) -> None:
        """Start the workers, one on each accelerator of the replica; waits until a node has them."""
        name = f"rollout_standalone_{self.replica_rank}{self.name_suffix}"
        self.start_workers(name, self.config.node_resource, self.config.ray_resource)

    @override
    def get_ray_class_with_init_args(self) -> RayClassWithInitArgs:
        return RayClassWithInitArgs(
            cls=ray.remote(load_class_from_fqn(REPLICA_WORKER)),
            rollout_config=self.config,
            model_config=self.model_config,
            replica_rank=self.replica_rank,
        )

    @override
    def _get_server_name_prefix(self) -> str:
        return "vllm_omni_"

    @override
    async def abort_all_requests(self, reject_request: bool = False) -> dict[str, Any]:
        reply: dict[str, Any] = await self.await_reply("abort_all_requests", super().abort_all_requests(reject_request))
        return reply

    @override
    async def abort_request(self, request_id: str) -> dict[str, Any]:
        reply: dict[str, Any] = await self.await_reply("abort_request", super().abort_request(request_id))
        return reply

    @override
    async def resume_generation(self) -> None:
        await self.await_reply("resume_generation", super().resume_generation())

    @override
    async def clear_kv_cache(self) -> None:
        await self.await_reply("clear_kv_cache", super().clear_kv_cache())

    @override
    async def release_kv_cache(self) -> None:
        await self.await_reply("release_kv_cache", super().release_kv_cache())

    @override
    async def resume_kv_cache(self) -> None:
        await self.await_reply("resume_kv_cache", super().resume_kv_cache())
