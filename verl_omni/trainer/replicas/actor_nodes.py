"""Managers whose actors stay on the trainer's nodes: agent-loop workers, reward workers and the routers.

A run cannot lose any of them, and the nodes of standalone replicas may come and go. Without `trainer.node_resource`,
all nodes are alike, and verl's own placement holds.
"""

from collections.abc import Sequence
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy
from typing_extensions import override
from verl.experimental.reward_loop import RewardLoopManager
from verl.single_controller.ray import RayResourcePool
from verl.utils.device import get_device_name, get_resource_name
from verl.workers.rollout.llm_server import LLMServerManager

from verl_omni.agent_loop.manager import DiffusionAgentLoopManager
from verl_omni.reward_loop.judge_router import WAIT_SECONDS, JudgeRouter
from verl_omni.trainer.settings import scorer_devices


def pinned(resource: str, number: int) -> dict[str, Any]:
    """Options of actor `number`: the nodes that have a custom resource take turns. They need no CPU of Ray."""
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"] and resource in node["Resources"]]
    if not nodes:
        raise RuntimeError(f"trainer.node_resource: no node of the Ray cluster has the resource {resource}")
    strategy = NodeAffinitySchedulingStrategy(node_id=nodes[number % len(nodes)], soft=False)
    return {"scheduling_strategy": strategy, "num_cpus": 0}


def in_bundles(pool: RayResourcePool, workers: int) -> list[dict[str, Any]]:
    """Options of each of the actors that share the accelerators of a pool, which take turns."""
    groups = pool.get_placement_groups(device_name=get_device_name())
    bundles = [(group, index) for group in groups for index in range(group.bundle_count)]
    options = scorer_devices.shared_options(workers, len(bundles), pool.max_colocate_count, get_resource_name())
    chosen = [bundles[number % len(bundles)] for number in range(workers)]
    return [{**options, "scheduling_strategy": PlacementGroupSchedulingStrategy(*bundle)} for bundle in chosen]


def start_judge_router(replicas: Sequence[str], name: str, deadline: float, *, elastic: bool) -> tuple[Any, str]:
    """The router of a judge's replicas, on the driver's node, and its address there.

    Args:
        replicas: host:port of each replica.
        name: what the judge is called in errors.
        deadline: seconds for the router to start, and for a replica that has questions to answer one.
        elastic: whether others may be added, for which requests wait.
    """
    here = NodeAffinitySchedulingStrategy(node_id=ray.get_runtime_context().get_node_id(), soft=False)
    router = (
        ray.remote(JudgeRouter)
        .options(scheduling_strategy=here, num_cpus=0)
        .remote(replicas, name, deadline, WAIT_SECONDS if elastic else None)
    )
    address: str = ray.get(router.start.remote(ray.util.get_node_ip_address().strip("[]")), timeout=deadline)
    return router, address


class PinnedServerManager(LLMServerManager):  # type: ignore[misc]
    """verl's manager of replicas, with its router on a node of the trainer."""

    @override
    async def _init_global_load_balancer(self) -> None:
        resource = self.config.trainer.node_resource
        if resource is None or self.rollout_config.router_config_path:
            await super()._init_global_load_balancer()
            return
        from verl.workers.rollout.router import GlobalRequestLoadBalancer

        servers = dict(zip(self.server_addresses, self.server_handles, strict=True))
        actor = ray.remote(GlobalRequestLoadBalancer).options(**pinned(resource, 0))
        self.global_load_balancer = actor.remote(servers=servers, full_determinism=self.rollout_config.full_determinism)


class PinnedAgentLoopManager(DiffusionAgentLoopManager):
    """The manager of agent-loop workers, with its workers on the trainer's nodes."""

    @override
    async def _init_agent_loop_workers(self) -> None:
        resource = self.config.trainer.node_resource
        if resource is None:
            await super()._init_agent_loop_workers()
            return
        self.agent_loop_workers = [
            self.agent_loop_workers_class.options(
                name=f"agent_loop_worker_{number}", **pinned(resource, number)
            ).remote(self.config, self.llm_client, self.teacher_client, self.reward_loop_worker_handles)
            for number in range(self.rollout_config.agent.num_workers)
        ]


class PinnedRewardLoopManager(RewardLoopManager):  # type: ignore[misc]
    """verl's manager of reward workers: on the trainer's nodes, and with accelerators if a scorer asks for them.

    Attributes:
        shared_pool: the trainer's accelerators, if scorers share them.
    """

    shared_pool: RayResourcePool | None = None

    @override
    def _init_reward_loop_workers(self) -> None:
        resource = self.config.trainer.node_resource
        reward = self.config.reward
        if self.shared_pool is not None:
            placed = in_bundles(self.shared_pool, reward.num_workers)
        elif scorer_devices.per_worker(reward):
            options = scorer_devices.worker_options(reward, get_resource_name(), resource)
            placed = [options] * reward.num_workers
        elif resource is not None:
            placed = [pinned(resource, number) for number in range(reward.num_workers)]
        else:
            super()._init_reward_loop_workers()
            return
        self.reward_loop_workers = [
            self.reward_loop_workers_class.options(name=f"reward_loop_worker_{number}", **options_of_worker).remote(
                self.config, self.reward_router_address
            )
            for number, options_of_worker in enumerate(placed)
        ]
