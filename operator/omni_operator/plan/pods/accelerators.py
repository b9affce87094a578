"""PURE: resources, environment and node labels that accelerators need, by vendor and node type."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from omni_operator.api.spec.pods import Accelerator
from omni_operator.plan.cluster_settings import ClusterSettings

Object = dict[str, Any]
# Vendor -> name of verl's platform.
PLATFORMS = {"NVIDIA": "nvidia", "Ascend": "huawei", "Mock": "cpu", "CPU": "cpu"}
CPU_ENV: Mapping[str, str] = {
    # On two busy cores, two threads take seven times as long as one (docs/adr/0005).
    "OMP_NUM_THREADS": "1",
    # Ray's default, nice 15, starves workers next to any busy process.
    "RAY_worker_niceness": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
# Collective communication on Ascend binds to the pod's address, which is known when the pod starts.
ASCEND_ENV: Mapping[str, str] = {
    "HCCL_SOCKET_IFNAME": "eth0",
    "GLOO_SOCKET_IFNAME": "eth0",
    "TP_SOCKET_IFNAME": "eth0",
    "HCCL_CONNECT_TIMEOUT": "600",
    "HCCL_ASYNC_ERROR_HANDLING": "0",
}


@dataclass(frozen=True, slots=True)
class NodeKind:
    """A node type: RuntimeClass, pod labels and node selector."""

    runtime_class: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)


NODE_KINDS: Mapping[str, NodeKind] = {
    "NVIDIA": NodeKind(runtime_class="nvidia"),
    "Atlas-A2": NodeKind("ascend", {"ring-controller.atlas": "ascend-910b"}, {"accelerator-type": "module-910b-8"}),
    "Atlas-A3": NodeKind("ascend", {"ring-controller.atlas": "ascend-910b"}, {"accelerator-type": "module-a3-16"}),
}


@dataclass(frozen=True, slots=True)
class AcceleratorNeeds:
    """What a pod needs for its accelerators.

    Attributes:
        resource: resource that the pod requests `count` times; None: none.
        ray_resource: Ray resource that the accelerators count as.
        env: environment variables, as in a pod spec.
    """

    resource: str | None
    count: int
    ray_resource: str
    env: tuple[Object, ...]
    runtime_class: str | None
    labels: Mapping[str, str]
    node_selector: Mapping[str, str]

    def limits(self) -> dict[str, str]:
        """The accelerators as limits of a container."""
        return {self.resource: str(self.count)} if self.resource else {}


def ray_resource_of(accelerator: Accelerator) -> str:
    """Ray resource that the accelerators count as."""
    return accelerator.ray_resource or ("NPU" if _is_like_ascend(accelerator) else "GPU")


def _is_like_ascend(accelerator: Accelerator) -> bool:
    return accelerator.vendor == "Ascend" or (accelerator.preset or "").startswith("Atlas")


def resolve_accelerator(accelerator: Accelerator, settings: ClusterSettings) -> AcceleratorNeeds:
    """What a pod needs for an accelerator; without a vendor it trains on the CPU."""
    vendor = accelerator.vendor or "CPU"
    like_ascend = _is_like_ascend(accelerator)
    # Nodes for Mock have the resource, but neither the RuntimeClass nor the labels of real ones.
    kind = NODE_KINDS[accelerator.preset] if accelerator.preset and vendor != "Mock" else NodeKind()
    ray_resource = ray_resource_of(accelerator)
    variables = {"VERL_PLATFORM": PLATFORMS[vendor]}
    if PLATFORMS[vendor] == "cpu":
        variables |= {**CPU_ENV, "VERL_OMNI_RAY_RESOURCE": ray_resource}
    env: list[Object] = [{"name": name, "value": value} for name, value in variables.items()]
    if like_ascend:
        env.append({"name": "HCCL_IF_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}})
        env += [{"name": name, "value": value} for name, value in ASCEND_ENV.items()]
    return AcceleratorNeeds(
        resource=accelerator.resource_name or settings.resource_names.get(vendor),
        count=accelerator.count,
        ray_resource=ray_resource,
        env=tuple(env),
        runtime_class=accelerator.runtime_class_name or kind.runtime_class,
        labels=kind.labels,
        node_selector=kind.node_selector,
    )
