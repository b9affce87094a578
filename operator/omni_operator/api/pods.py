"""What a pod runs on and with. On one machine, by `drl run`, these do not count."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, JsonValue, StringConstraints, WithJsonSchema
from typing_extensions import override

from .base import AbsolutePath, Cel, DataKey, NullFree, ObjectName, Quantity, Strict, Violation

ResourceName = Annotated[str, StringConstraints(max_length=253, pattern=r"^[a-z0-9.-]+/[A-Za-z0-9._-]+$")]
ResourceKey = Annotated[str, StringConstraints(max_length=253, pattern=r"^([a-z0-9.-]+/)?[A-Za-z0-9._-]+$")]
Vendor: TypeAlias = Literal["NVIDIA", "Ascend", "Mock", "CPU"]
Preset: TypeAlias = Literal["NVIDIA", "Atlas-A2", "Atlas-A3"]

_CONTAINERS = {
    "type": "array",
    "maxItems": 16,
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["name"],
    "items": {
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": True,
        "required": ["name"],
        "properties": {
            "name": {"type": "string", "maxLength": 63, "description": "Merged with ours of that name."},
            "securityContext": {
                "type": "object",
                "x-kubernetes-preserve-unknown-fields": True,
                "description": "Security context.",
                "properties": {"privileged": {"type": "boolean", "description": "Needs security.allowHostPaths."}},
            },
        },
    },
}
_HOST = {"type": "boolean", "description": "Needs security.allowHostPaths."}
# Only what the guard looks at is spelled out: the whole pod template would make the CRD too big to install.
_POD_TEMPLATE: dict[str, Any] = {
    "type": "object",
    "x-kubernetes-preserve-unknown-fields": True,
    "properties": {
        "metadata": {
            "type": "object",
            "x-kubernetes-preserve-unknown-fields": True,
            "description": "Labels and annotations of the pods.",
        },
        "spec": {
            "type": "object",
            "x-kubernetes-preserve-unknown-fields": True,
            "description": "A pod's spec; lists are merged by name.",
            "properties": {
                "hostNetwork": _HOST,
                "hostIPC": _HOST,
                "hostPID": _HOST,
                "containers": {**_CONTAINERS, "description": "Containers; ours is called ray."},
                "initContainers": {**_CONTAINERS, "description": "Containers that run first."},
                "volumes": {
                    "type": "array",
                    "maxItems": 64,
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["name"],
                    "description": "Volumes.",
                    "items": {
                        "type": "object",
                        "x-kubernetes-preserve-unknown-fields": True,
                        "required": ["name"],
                        "properties": {
                            "name": {"type": "string", "maxLength": 63, "description": "Name."},
                            "hostPath": {
                                "type": "object",
                                "x-kubernetes-preserve-unknown-fields": True,
                                "description": "Needs security.allowHostPaths.",
                            },
                        },
                    },
                },
            },
        },
    },
}
PodTemplate = Annotated[dict[str, JsonValue], NullFree, WithJsonSchema(_POD_TEMPLATE)]
HOST_NAMESPACES = ("hostNetwork", "hostIPC", "hostPID")


def host_access(template: dict[str, Any]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """What in a pod template reaches into the node: where, and what it is."""
    spec = template.get("spec")
    if not isinstance(spec, dict):
        return
    for name in HOST_NAMESPACES:
        if spec.get(name) is True:
            yield ("spec", name), name
    for kind in ("containers", "initContainers", "ephemeralContainers"):
        for place, container in enumerate(_mappings(spec.get(kind))):
            context = container.get("securityContext")
            if isinstance(context, dict) and context.get("privileged") is True:
                yield ("spec", kind, place, "securityContext", "privileged"), "a privileged container"
    for place, volume in enumerate(_mappings(spec.get("volumes"))):
        if volume.get("hostPath") is not None:
            yield ("spec", "volumes", place, "hostPath"), "a hostPath volume"


def host_access_cel(template: str) -> str:
    """`host_access` finds nothing, in CEL; `template` is an expression that is always there."""
    spec = f"{template}.spec"
    apart = [f"(!has({spec}.{name}) || !{spec}.{name})" for name in HOST_NAMESPACES]
    apart += [
        f"(!has({spec}.{kind}) || {spec}.{kind}.all(c, !has(c.securityContext) || "
        f"!has(c.securityContext.privileged) || !c.securityContext.privileged))"
        for kind in ("containers", "initContainers")
    ]
    apart.append(f"(!has({spec}.volumes) || {spec}.volumes.all(v, !has(v.hostPath)))")
    return f"!has({spec}) || ({' && '.join(apart)})"


def _mappings(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


class Resources(Strict):
    """Requests and limits of a pod's container, as Kubernetes knows them."""

    requests: Annotated[dict[ResourceKey, Quantity], NullFree] = Field(
        default_factory=dict, max_length=32, description="What is kept free for it."
    )
    limits: Annotated[dict[ResourceKey, Quantity], NullFree] = Field(
        default_factory=dict, max_length=32, description="What it may not pass."
    )


class SharedMemory(Strict):
    """/dev/shm, where Ray keeps objects and weights are handed over."""

    size_limit: Quantity = Field(default="2Gi", description="Size; it counts as memory of the pod, and is added to it.")


class Accelerator(Strict):
    """The devices of one replica."""

    vendor: Vendor | None = Field(
        default=None,
        description="Kind of device. CPU: none. Mock: pods ask for devices, the processor computes. "
        "Default: on one machine whatever it has, on a cluster CPU.",
    )
    count: int = Field(default=1, ge=1, le=64, description="Devices; with CPU, processes.")
    resource_name: ResourceName | None = Field(
        default=None,
        description="What the nodes' device plug-in calls a device, e.g. nvidia.com/gpu. "
        "Default: what the operator's settings say for the vendor. Cluster only.",
    )
    runtime_class_name: ObjectName | None = Field(default=None, description="RuntimeClass of the pods. Cluster only.")
    preset: Preset | None = Field(
        default=None, description="Runtime class, variables and labels of a kind of node. Cluster only."
    )
    ray_resource: Literal["GPU", "NPU"] | None = Field(
        default=None, description="What Ray counts devices as. Default: NPU for Ascend and its presets, else GPU."
    )

    cel = (
        Cel(
            "!has(self.vendor) || self.vendor != 'CPU' || !has(self.resourceName)",
            "resourceName: with vendor CPU no device is asked for; Mock asks for one and computes on the processor",
            ".resourceName",
        ),
        Cel(
            "has(self.vendor) || !has(self.resourceName)",
            "vendor: must be given with resourceName (NVIDIA, Ascend or Mock)",
            ".vendor",
        ),
        Cel(
            "!has(self.preset) || (has(self.vendor) && (self.vendor == 'Mock' || "
            "(self.vendor == 'NVIDIA' && self.preset == 'NVIDIA') || "
            "(self.vendor == 'Ascend' && self.preset.startsWith('Atlas'))))",
            "preset: is of another vendor",
            ".preset",
        ),
    )

    @override
    def violations(self) -> Iterator[Violation]:
        if self.vendor == "CPU" and self.resource_name:
            yield Violation(
                ("resourceName",),
                "with vendor CPU no device is asked for; Mock asks for one and computes on the processor",
            )
        if self.vendor is None and self.resource_name:
            yield Violation(("vendor",), "must be given with resourceName: NVIDIA, Ascend or Mock")
        if self.preset and self.vendor != "Mock":
            of = "NVIDIA" if self.preset == "NVIDIA" else "Ascend"
            if self.vendor != of:
                yield Violation(("preset",), f"{self.preset} is of vendor {of}, not {self.vendor or 'the default'}")


class ObjectReference(Strict):
    """An object of the job's namespace."""

    name: ObjectName = Field(description="Its name.")


class KeyReference(Strict):
    """A key in a Secret or ConfigMap of the job's namespace."""

    name: ObjectName = Field(description="Name of the object.")
    key: DataKey = Field(description="The key in it.")


class ClaimReference(Strict):
    """A PersistentVolumeClaim of the job's namespace, which every pod mounts."""

    claim_name: ObjectName = Field(description="Its name. With several pods: one that many may write (RWX).")


class Runtime(Strict):
    """The image that pods run and how they get it. Cluster only."""

    image: Annotated[str, StringConstraints(min_length=1, max_length=1024, pattern=r"^[^\s\x00-\x1f\x7f]+$")] | None = (
        Field(default=None, description="Image with Ray and the training stack. Default: the operator's settings say.")
    )
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = Field(
        default="IfNotPresent", description="When the image is pulled."
    )
    ray_version: Annotated[str, StringConstraints(max_length=32, pattern=r"^[0-9]+\.[0-9]+\.[0-9]+$")] | None = Field(
        default=None, description="Version of Ray in the image. Default: the operator's settings say."
    )
    service_account_name: ObjectName | None = Field(default=None, description="ServiceAccount of the pods.")
    image_pull_secrets: Annotated[tuple[ObjectReference, ...], Field(strict=False)] = Field(
        default=(), max_length=16, description="Secrets to pull the image with."
    )
    working_dir: AbsolutePath = Field(
        default="/opt/omni/examples", description="Folder in the image that relative paths of a job start at."
    )

    cel = (
        Cel(
            "!has(self.image) || has(self.rayVersion)",
            "rayVersion: must be given with image: probes and token authentication depend on it",
            ".rayVersion",
        ),
    )

    @override
    def violations(self) -> Iterator[Violation]:
        if self.image and not self.ray_version:
            yield Violation(("rayVersion",), "must be given with image: probes and token authentication depend on it")


class Head(Strict):
    """The pod of Ray's head and of the training program, which does no work on a device. Cluster only."""

    resources: Resources = Field(default=Resources(), description="Requests and limits. Default: 1 CPU, 4Gi.")
    pod_template: PodTemplate = Field(
        default_factory=dict, description="Merged into the head's pod template by strategy: lists by name."
    )
