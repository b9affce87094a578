"""Resources, accelerators, image and head of a job's pods. Most have no effect in a local run."""

from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from pydantic import Field, StringConstraints

from omni_operator.api.base import AbsolutePath, DataKey, NullFree, ObjectName, Quantity, Rule, StrictModel
from verl_omni.settings_schema.declarations import RAY_RESOURCES

from .pod_template import PodTemplate

ResourceName = Annotated[str, StringConstraints(max_length=253, pattern=r"^[a-z0-9.-]+/[A-Za-z0-9._-]+$")]
ResourceKey = Annotated[str, StringConstraints(max_length=253, pattern=r"^([a-z0-9.-]+/)?[A-Za-z0-9._-]+$")]
Vendor: TypeAlias = Literal["NVIDIA", "Ascend", "Mock", "CPU"]
CPU_HAS_NO_RESOURCE = (
    "must not be given with vendor CPU, which requests no accelerator; Mock requests one and runs on the CPU"
)
VENDOR_NEEDED = "must be given with accelerator.resourceName: NVIDIA, Ascend or Mock"
RAY_VERSION_NEEDED = "must be given with spec.runtime.image: probes and token authentication depend on it"
Preset: TypeAlias = Literal["NVIDIA", "Atlas-A2", "Atlas-A3"]
if TYPE_CHECKING:
    RayResource = str
else:
    RayResource = Literal[RAY_RESOURCES]


class PodReplacement(StrictModel):
    """How pods of the running attempt are replaced when the spec changes what they are made of."""

    max_unavailable: int = Field(
        default=1, ge=1, le=1024, description="Maximum number of these pods that do not serve while others do."
    )
    progress_deadline_seconds: int = Field(
        default=1800,
        ge=1,
        le=86_400,
        description="Time for new pods to serve, after which pods of the spec before replace them. Longer than a pod "
        "takes to start, load the model and, in a rollout pod, get weights, which may be a training step.",
    )


class Resources(StrictModel):
    """Resource requests and limits of a container."""

    requests: Annotated[dict[ResourceKey, Quantity], NullFree] = Field(
        default_factory=dict,
        max_length=32,
        description='Resources reserved for the container, e.g. cpu: "4", memory: 16Gi.',
    )
    limits: Annotated[dict[ResourceKey, Quantity], NullFree] = Field(
        default_factory=dict, max_length=32, description="Upper limit of each resource."
    )


class SharedMemory(StrictModel):
    """/dev/shm, which holds Ray's object store and the weights that trainer and engine exchange."""

    size_limit: Quantity = Field(
        default="2Gi",
        description="Size. It counts as memory, so it is added to the memory request and limit of the container.",
    )


class Accelerator(StrictModel):
    """Accelerators of one replica."""

    vendor: Vendor | None = Field(
        default=None,
        description="Vendor of the accelerators. CPU: train without accelerators. Mock: pods request accelerators, "
        "and the work runs on the CPU. Default: in a local run what the machine has; on a cluster CPU, with a warning.",
    )
    count: int = Field(default=1, ge=1, le=64, description="Number of accelerators; with CPU, of processes.")
    resource_name: ResourceName | None = Field(
        default=None,
        description="Resource name of the accelerator in the nodes' device plug-in. Default: nvidia.com/gpu or "
        "huawei.com/Ascend910, unless the operator is configured otherwise. Cluster only.",
    )
    runtime_class_name: ObjectName | None = Field(
        default=None, description="RuntimeClass of the pods. Default: the preset's. Cluster only."
    )
    preset: Preset | None = Field(
        default=None,
        description="Runtime class, environment, labels and node selector of a node type. Default: none. Cluster only.",
    )
    ray_resource: RayResource | None = Field(
        default=None,
        description="Ray resource that the accelerators count as. Default: NPU for Ascend and the Atlas presets, else "
        "GPU. Cluster only.",
    )

    cel = (
        Rule(
            "self.resource_name is None or self.vendor is None or self.vendor != 'CPU'",
            "resourceName",
            CPU_HAS_NO_RESOURCE,
        ),
        Rule("self.resource_name is None or self.vendor is not None", "vendor", VENDOR_NEEDED),
        Rule(
            "self.preset is None or (self.vendor is not None and (self.vendor == 'Mock' or "
            "(self.vendor == 'NVIDIA' and self.preset == 'NVIDIA') or "
            "(self.vendor == 'Ascend' and self.preset.startswith('Atlas'))))",
            "preset",
            "must be a preset of accelerator.vendor",
            "{self.preset} is a preset of vendor {self.vendor_of_preset}; accelerator.vendor is {self.vendor}",
        ),
    )

    @property
    def vendor_of_preset(self) -> str:
        """The vendor whose accelerators `preset` describes."""
        return "NVIDIA" if self.preset == "NVIDIA" else "Ascend"


class ObjectReference(StrictModel):
    """An object in the job's namespace."""

    name: ObjectName = Field(description="Name of the object.")


class KeyReference(StrictModel):
    """A key of a Secret in the job's namespace."""

    name: ObjectName = Field(description="Name of the Secret.")
    key: DataKey = Field(description="Key in the Secret.")


class ClaimReference(StrictModel):
    """A PersistentVolumeClaim in the job's namespace."""

    claim_name: ObjectName = Field(description="Name of the claim. Several pods need ReadWriteMany.")


LONGEST_IMAGE_NAME = 1024
IMAGE_NAME = r"^[^\s\x00-\x1f\x7f]+$"
ImageName = Annotated[str, StringConstraints(min_length=1, max_length=LONGEST_IMAGE_NAME, pattern=IMAGE_NAME)]


class Runtime(StrictModel):
    """Image and service account of the pods. Cluster only."""

    image: ImageName | None = Field(
        default=None, description="Image with Ray and the training stack. Default: the operator's jobs.image."
    )
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = Field(
        default="IfNotPresent", description="Image pull policy."
    )
    ray_version: Annotated[str, StringConstraints(max_length=32, pattern=r"^[0-9]+\.[0-9]+\.[0-9]+$")] | None = Field(
        default=None,
        description="Version of Ray in the image; required with image. Default: the operator's jobs.rayVersion.",
    )
    service_account_name: ObjectName | None = Field(
        default=None, description="ServiceAccount of the pods. Default: default."
    )
    image_pull_secrets: Annotated[tuple[ObjectReference, ...], Field(strict=False)] = Field(
        default=(), max_length=16, description="Secrets with the registry's credentials."
    )
    working_dir: AbsolutePath = Field(
        default="/opt/omni/examples", description="Folder in the image that the job's relative paths start from."
    )

    cel = (Rule("self.image is None or self.ray_version is not None", "rayVersion", RAY_VERSION_NEEDED),)


class Head(StrictModel):
    """Pod of the Ray head. Training runs in the trainer's pods, not here. Cluster only."""

    resources: Resources = Field(
        default=Resources.model_construct(),
        description="Requests and limits of the head pod. Default: requests of 500m CPU and 2Gi, no limits.",
    )
    pod_template: PodTemplate = Field(
        default_factory=dict,
        description="Strategic merge patch for the head's pod template: lists of containers, volumes and variables "
        "merge by name.",
    )
