"""Accelerators of a pool of replicas, which may be of another vendor than the driver's."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry, get_platform
from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup

# verl's platform for each Ray resource of real accelerators.
PLATFORMS: Mapping[str, str] = {"GPU": "nvidia", "NPU": "huawei"}
SOME = 1e-4  # amount of the pool's custom resource per process; any node has enough for all its processes


@dataclass(frozen=True, slots=True)
class PoolAccelerators:
    """How processes get accelerators of a pool.

    Attributes:
        resource: Ray resource that they count as.
        environment: variables of the processes. A pod of the pool has them, but Ray overwrites them with the driver's,
            which name the driver's platform.
        server_environment: variables of a server, whose engine computes on the accelerators of its workers.
    """

    resource: str
    environment: Mapping[str, str]
    server_environment: Mapping[str, str]

    def reserve(self, name: str, nodes: list[int], node_resource: str | None) -> list[PlacementGroup]:
        """Reserve accelerators; waits until there are nodes each of which has as many as one of `nodes`.

        Args:
            name: prefix of the names of the placement groups, one for each node.
            nodes: number of accelerators of each node.
            node_resource: custom Ray resource of the nodes; None: any node.
        """
        bundle = {"CPU": 1, self.resource: 1, **({node_resource: SOME} if node_resource else {})}
        groups = [
            placement_group([dict(bundle) for _ in range(count)], strategy="STRICT_PACK", name=f"{name}:{index}")
            for index, count in enumerate(nodes)
        ]
        ray.get([group.ready() for group in groups])
        return groups

    def start(self, name: str, nodes: list[int], groups: list[PlacementGroup], made: RayClassWithInitArgs) -> Any:
        """Start one actor on each reserved accelerator.

        Args:
            name: prefix of the actors' names. made: the actors' class and arguments.

        Returns:
            The worker group.
        """
        pool = RayResourcePool(process_on_nodes=nodes, use_gpu=False, name_prefix=name, max_colocate_count=1)
        pool.pgs = groups
        # verl's accelerator options are for the driver's platform.
        made.update_options({"num_gpus": 1} if self.resource == "GPU" else {"resources": {self.resource: 1}})
        return RayWorkerGroup(
            resource_pool=pool,
            ray_cls_with_init=made,
            bin_pack=False,
            name_prefix=name,
            use_gpu=False,
            worker_env=dict(self.environment),
        )


def pool_accelerators(resource: str | None) -> PoolAccelerators:
    """Accelerators with a Ray resource; None: the driver platform's."""
    driver = get_platform()
    if resource in (None, driver.ray_resource_name()):
        return PoolAccelerators(driver.ray_resource_name(), {}, {})
    if driver.device_name == "cpu":  # the CPU computes, whatever the nodes call it
        environment = {"VERL_PLATFORM": "cpu", "VERL_OMNI_RAY_RESOURCE": resource}
        return PoolAccelerators(resource, environment, environment)
    platform: PlatformBase = PlatformRegistry.get(PLATFORMS[resource])()
    environment = {"VERL_PLATFORM": PLATFORMS[resource]}
    unset = dict.fromkeys(platform.ray_noset_envvars(), "1")
    return PoolAccelerators(resource, environment, {**environment, **unset, **platform.rollout_env_vars()})


class WithEnvironment:
    """A Ray actor class whose actors get environment variables in addition to the ones in `options`."""

    def __init__(self, actor_class: Any, environment: Mapping[str, str]) -> None:
        self._class = actor_class
        self._environment = environment

    def options(self, *, runtime_env: Mapping[str, Any], **options: Any) -> Any:
        """The class with Ray's options."""
        variables = {**runtime_env.get("env_vars", {}), **self._environment}
        return self._class.options(runtime_env={**runtime_env, "env_vars": variables}, **options)
