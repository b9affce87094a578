"""PURE: an accelerator -> what pods need for it. What is known of vendors and kinds of nodes is data, here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from omni_operator.api.pods import Accelerator

from .cluster_settings import ClusterSettings

Object = dict[str, Any]
# Names of verl's platforms.
PLATFORMS = {"NVIDIA": "nvidia", "Ascend": "huawei", "Mock": "cpu", "CPU": "cpu"}
HOST: Mapping[str, str] = {
    # Two threads on two busy cores cost seven times one thread's seconds (docs/adr/0005).
    "OMP_NUM_THREADS": "1",
    # Ray runs workers at nice 15, where they starve beside any busy process.
    "RAY_worker_niceness": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
# Collective communication of Ascend devices binds to an address: the pod's, which is known when it starts.
ASCEND: Mapping[str, str] = {
    "HCCL_SOCKET_IFNAME": "eth0", "GLOO_SOCKET_IFNAME": "eth0", "TP_SOCKET_IFNAME": "eth0",
    "HCCL_CONNECT_TIMEOUT": "600", "HCCL_ASYNC_ERROR_HANDLING": "0",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class NodeKind:
    """A kind of node, as its plug-in and scheduler know it."""

    runtime_class: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)


NODE_KINDS: Mapping[str, NodeKind] = {
    "NVIDIA": NodeKind(runtime_class="nvidia"),
    "Atlas-A2": NodeKind("ascend", {"ring-controller.atlas": "ascend-910b"}, {"accelerator-type": "module-910b-8"}),
    "Atlas-A3": NodeKind("ascend", {"ring-controller.atlas": "ascend-910b"}, {"accelerator-type": "module-a3-16"}),
}


@dataclass(frozen=True, slots=True)
class Devices:
    """What the pods of one role need for their devices.

    Attributes:
        resource: what the pods ask the cluster for, `count` of it; None: nothing.
        ray_resource: what Ray counts the devices as.
        env: variables of every container, as a pod's spec has them.
    """

    resource: str | None
    count: int
    ray_resource: str
    env: tuple[Object, ...]
    runtime_class: str | None
    labels: Mapping[str, str]
    node_selector: Mapping[str, str]

    def limits(self) -> dict[str, str]:
        """The devices as a container's limits."""
        return {self.resource: str(self.count)} if self.resource else {}


def resolve_devices(accelerator: Accelerator, settings: ClusterSettings) -> Devices:
    """What an accelerator means on a cluster. One that names no vendor is the processor."""
    vendor = accelerator.vendor or "CPU"
    like_ascend = vendor == "Ascend" or (accelerator.preset or "").startswith("Atlas")
    # A mock's nodes have the resource alone: neither a RuntimeClass nor labels of real ones.
    kind = NODE_KINDS[accelerator.preset] if accelerator.preset and vendor != "Mock" else NodeKind()
    ray_resource = accelerator.ray_resource or ("NPU" if like_ascend else "GPU")
    variables = {"VERL_PLATFORM": PLATFORMS[vendor]}
    if PLATFORMS[vendor] == "cpu":
        variables |= {**HOST, "VERL_OMNI_RAY_RESOURCE": ray_resource}
    env: list[Object] = [{"name": name, "value": value} for name, value in variables.items()]
    if like_ascend:
        env.append({"name": "HCCL_IF_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}})
        env += [{"name": name, "value": value} for name, value in ASCEND.items()]
    return Devices(
        resource=accelerator.resource_name or settings.resource_names.get(vendor),
        count=accelerator.count,
        ray_resource=ray_resource,
        env=tuple(env),
        runtime_class=accelerator.runtime_class_name or kind.runtime_class,
        labels=kind.labels,
        node_selector=kind.node_selector,
    )
