"""What a pod runs on and with. On one machine, by `drl run`, these do not count."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, TypeAlias

from pydantic import Field, StringConstraints
from typing_extensions import override

from .base import AbsolutePath, Cel, DataKey, NullFree, ObjectName, Quantity, StrictModel, Violation
from .pod_template import PodTemplate

ResourceName = Annotated[str, StringConstraints(max_length=253, pattern=r"^[a-z0-9.-]+/[A-Za-z0-9._-]+$")]
ResourceKey = Annotated[str, StringConstraints(max_length=253, pattern=r"^([a-z0-9.-]+/)?[A-Za-z0-9._-]+$")]
Vendor: TypeAlias = Literal["NVIDIA", "Ascend", "Mock", "CPU"]
Preset: TypeAlias = Literal["NVIDIA", "Atlas-A2", "Atlas-A3"]


class Resources(StrictModel):
    """Requests and limits of a pod's container, as Kubernetes knows them."""

    requests: Annotated[dict[ResourceKey, Quantity], NullFree] = Field(
        default_factory=dict, max_length=32, description="What is kept free for it."
    )
    limits: Annotated[dict[ResourceKey, Quantity], NullFree] = Field(
        default_factory=dict, max_length=32, description="What it may not pass."
    )


class SharedMemory(StrictModel):
    """/dev/shm, where Ray keeps objects and weights are handed over."""

    size_limit: Quantity = Field(default="2Gi", description="Size; it counts as memory of the pod, and is added to it.")


class Accelerator(StrictModel):
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


class ObjectReference(StrictModel):
    """An object of the job's namespace."""

    name: ObjectName = Field(description="Its name.")


class KeyReference(StrictModel):
    """A key in a Secret or ConfigMap of the job's namespace."""

    name: ObjectName = Field(description="Name of the object.")
    key: DataKey = Field(description="The key in it.")


class ClaimReference(StrictModel):
    """A PersistentVolumeClaim of the job's namespace, which the workers mount."""

    claim_name: ObjectName = Field(description="Its name. With several pods: one that many may write (RWX).")


class Runtime(StrictModel):
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


class Head(StrictModel):
    """The pod of Ray's head; the training program and all work are in the workers' pods. Cluster only."""

    resources: Resources = Field(
        default=Resources(), description="Requests and limits. Default: requests of 500m, 2Gi."
    )
    pod_template: PodTemplate = Field(
        default_factory=dict, description="Merged into the head's pod template by strategy: lists by name."
    )
