"""`DiffusionRLJob`, the one kind that users write."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator
from typing_extensions import override

from .base import Cel, StrictModel, Violation, immutable, without_nulls
from .data import Data
from .model import Model
from .platform import Observability, Scheduling, Security
from .pod_template import host_access, host_access_cel
from .pods import Head, Runtime
from .policy import CleanupPolicy, FailurePolicy, ManagedBy, Seconds, SuspendPolicy
from .reward import Reward
from .rollout import Rollout
from .status import Status
from .training import Algorithm, Checkpoint, Trainer

API_VERSION = "diffusionrl.io/v1alpha1"
KIND = "DiffusionRLJob"
NAME_LIMIT = 43  # of 63: what is derived from a job's name (attempt, role, KubeRay's suffixes) must fit too
DNS_1035 = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
RESULTS_LOST = (
    "is not given: checkpoints, adapter, images and report are in an emptyDir, which is deleted with the pods soon "
    "after the attempt ends; name a PersistentVolumeClaim to keep them"
)
NO_VENDOR = (
    "is not given: the pods request no accelerator and train on the CPU; write NVIDIA or Ascend, or CPU to confirm"
)
NO_CLAIM = "another attempt goes on from a checkpoint, which needs checkpoint.claimName to outlive the pods"
COMPARES = "the algorithm compares pictures of one prompt: at least 2 are needed"
NO_NOISE = "FlowGRPO learns from the sampler's noise: it must be more than 0"
NO_BASE = "DiffusionDPO compares with the base, which is the model without its adapter: it must be true"
PAIRS = "DiffusionDPO makes one pair of each prompt: all devices must be able to share them evenly"
_DEVICES = "self.trainer.replicas * self.trainer.accelerator.count"
_SAMPLES = "(self.trainer.batch.prompts * self.rollout.samplesPerPrompt)"


class Metadata(BaseModel):
    """The job's name and labels; what a cluster adds is kept out of the way, not refused."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    name: Annotated[str, StringConstraints(max_length=NAME_LIMIT, pattern=DNS_1035)] = Field(
        description=f"Lower-case letters, digits and '-', a letter first, at most {NAME_LIMIT} characters."
    )
    namespace: str | None = Field(default=None, description="Namespace on a cluster.")
    labels: dict[str, str] = Field(default_factory=dict, description="Labels on a cluster.")
    annotations: dict[str, str] = Field(default_factory=dict, description="Annotations on a cluster.")
    uid: str | None = Field(default=None, description="Set by the cluster.")
    generation: int = Field(default=0, description="Set by the cluster: changes of the spec.")
    resource_version: str | None = Field(default=None, alias="resourceVersion", description="Set by the cluster.")
    creation_timestamp: str | None = Field(default=None, alias="creationTimestamp", description="Set by the cluster.")
    deletion_timestamp: str | None = Field(default=None, alias="deletionTimestamp", description="Set by the cluster.")
    finalizers: Annotated[tuple[str, ...], Field(strict=False)] = Field(default=(), description="Set on a cluster.")

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, value: Any) -> Any:
        return without_nulls(value)


class Spec(StrictModel):
    """What to run."""

    not_yet = MappingProxyType({
        "weightSync": "there is nothing to choose yet: weights reach the engines over IPC, as an adapter where "
        "spec.model.lora.enabled is true and whole where it is false",
    })  # fmt: skip

    model: Model = Field(description="What is trained.")
    data: Data = Field(description="Prompts.")
    reward: Reward = Field(description="What a picture is worth.")
    trainer: Trainer = Field(description="The trainer's size and pace.")
    algorithm: Algorithm = Field(default=Algorithm(), description="How it learns.")
    rollout: Rollout = Field(default=Rollout(), description="How pictures are drawn.")
    checkpoint: Checkpoint = Field(default=Checkpoint(), description="What a run can go on from.")
    seed: int = Field(default=0, ge=0, le=2**31 - 1, description="Of everything that is drawn at random.")
    suspend: bool = Field(default=False, description="Give the devices back, after a checkpoint. false: go on.")
    managed_by: ManagedBy = Field(
        default="diffusionrl.io/operator",
        description="Who runs the job: this cluster's operator, or another cluster through MultiKueue.",
        json_schema_extra=immutable("managedBy"),
    )
    active_deadline_seconds: Seconds | None = Field(
        default=None,
        description="The whole job, all attempts and what lies between, may take so long. A suspension starts the "
        "time anew, as it does for Jobs. Default: no limit.",
    )
    pre_running_deadline_seconds: Seconds | None = Field(
        default=None, description="An admitted attempt may take so long until its trainer starts. Default: no limit."
    )
    backoff_limit: int = Field(
        default=0, ge=0, le=50, description="Further attempts after failures. More than 0 needs checkpoint.claimName."
    )
    failure_policy: FailurePolicy = Field(
        default=FailurePolicy(), description="Which failures are worth another attempt."
    )
    suspend_policy: SuspendPolicy = Field(default=SuspendPolicy(), description="What happens before a suspension.")
    ttl_seconds_after_finished: Annotated[int, Field(ge=0, le=31_536_000)] | None = Field(
        default=None, description="Delete the job so long after its end. Default: keep it."
    )
    cleanup_policy: CleanupPolicy = Field(
        default="DeleteCluster", description="What becomes of the Ray cluster at the end of an attempt."
    )
    runtime: Runtime = Field(default=Runtime(), description="The image that pods run.")
    head: Head = Field(default=Head(), description="The pod of Ray's head.")
    scheduling: Scheduling = Field(default=Scheduling(), description="Where pods go.")
    security: Security = Field(default=Security(), description="What pods may do and who may reach them.")
    observability: Observability = Field(default=Observability(), description="Metrics and experiment tracking.")

    cel = (
        Cel("self.backoffLimit == 0 || has(self.checkpoint.claimName)", f"backoffLimit: {NO_CLAIM}", ".backoffLimit"),
        Cel(
            f"self.rollout.replicas * self.rollout.engine.tensorParallelSize == {_DEVICES}",
            "rollout.replicas: x engine.tensorParallelSize must be trainer.replicas x accelerator.count: "
            "Colocated engines share the trainer's devices",
            ".rollout.replicas",
        ),
        Cel(
            f"{_SAMPLES} % ({_DEVICES}) == 0",
            "trainer.batch.prompts: x rollout.samplesPerPrompt cannot be shared evenly by all devices",
            ".trainer.batch.prompts",
        ),
        Cel(
            f"{_SAMPLES} % self.rollout.agentLoop.workers == 0",
            "trainer.batch.prompts: x rollout.samplesPerPrompt cannot be shared evenly by agentLoop.workers",
            ".trainer.batch.prompts",
        ),
        Cel(
            "self.algorithm.name == 'Custom' || self.rollout.samplesPerPrompt >= 2",
            f"rollout.samplesPerPrompt: {COMPARES}",
            ".rollout.samplesPerPrompt",
        ),
        Cel(
            "self.algorithm.name != 'FlowGRPO' || self.rollout.sampler.noiseLevel > 0.0",
            f"rollout.sampler.noiseLevel: {NO_NOISE}",
            ".rollout.sampler.noiseLevel",
        ),
        Cel(
            "self.algorithm.name != 'DiffusionDPO' || self.model.lora.enabled",
            f"model.lora.enabled: {NO_BASE}",
            ".model.lora.enabled",
        ),
        Cel(
            f"self.algorithm.name != 'DiffusionDPO' || self.trainer.batch.prompts % ({_DEVICES}) == 0",
            f"trainer.batch.prompts: {PAIRS}",
            ".trainer.batch.prompts",
        ),
        *(
            Cel(
                f"self.security.allowHostPaths || !has(self.{role}.podTemplate) || "
                f"({host_access_cel(f'self.{role}.podTemplate')})",
                f"{role}.podTemplate: reaches into the node, which needs security.allowHostPaths",
                f".{role}.podTemplate",
            )
            for role in ("head", "trainer")
        ),
    )

    @property
    def keeps_results(self) -> bool:
        """Whether the run folder outlives the pods: it is on a claim, or on a volume of the user's."""
        if self.checkpoint.claim_name:
            return True
        spec: Mapping[str, Any] = self.trainer.pod_template.get("spec", {})  # type: ignore[assignment]
        mounts = [mount for container in spec.get("containers", ()) for mount in container.get("volumeMounts", ())]
        names = {"runs"} | {mount["name"] for mount in mounts if mount.get("mountPath") == self.checkpoint.path}
        return any(volume["name"] in names and "emptyDir" not in volume for volume in spec.get("volumes", ()))

    @override
    def violations(self) -> Iterator[Violation]:
        yield from self._size_rules()
        yield from self._algorithm_rules()
        yield from self._cluster_rules()

    def _size_rules(self) -> Iterator[Violation]:
        devices, parallel = self.trainer.devices, self.rollout.engine.tensor_parallel_size
        if self.rollout.replicas * parallel != devices:
            yield Violation(
                ("rollout", "replicas"),
                f"Colocated engines share the trainer's devices: replicas x engine.tensorParallelSize "
                f"({self.rollout.replicas} x {parallel}) must be trainer.replicas x accelerator.count ({devices})",
            )
        samples = self.trainer.batch.prompts * self.rollout.samples_per_prompt
        for parts, what in ((devices, "devices"), (self.rollout.agent_loop.workers, "agentLoop.workers")):
            if samples % parts:
                yield Violation(
                    ("trainer", "batch", "prompts"),
                    f"prompts x rollout.samplesPerPrompt is {samples}, which {parts} {what} cannot share evenly",
                )

    def _algorithm_rules(self) -> Iterator[Violation]:
        name = self.algorithm.name
        if name != "Custom" and self.rollout.samples_per_prompt < 2:
            yield Violation(("rollout", "samplesPerPrompt"), COMPARES)
        if name == "FlowGRPO" and self.rollout.sampler.noise_level == 0:
            yield Violation(("rollout", "sampler", "noiseLevel"), NO_NOISE)
        if name == "DiffusionDPO":
            if not self.model.lora.enabled:
                yield Violation(("model", "lora", "enabled"), NO_BASE)
            if self.trainer.batch.prompts % self.trainer.devices:
                yield Violation(("trainer", "batch", "prompts"), PAIRS)

    def _cluster_rules(self) -> Iterator[Violation]:
        if self.backoff_limit and self.checkpoint.claim_name is None:
            yield Violation(("backoffLimit",), NO_CLAIM)
        if not self.security.allow_host_paths:
            for role, template in (("head", self.head.pod_template), ("trainer", self.trainer.pod_template)):
                for at, what in host_access(template):
                    yield Violation((role, "podTemplate", *at), f"{what} needs spec.security.allowHostPaths")


class DiffusionRLJob(StrictModel):
    """Reinforcement learning of a diffusion model."""

    api_version: Literal["diffusionrl.io/v1alpha1"] = Field(description="Version of this form.")
    kind: Literal["DiffusionRLJob"] = Field(description="Kind of object.")
    metadata: Metadata = Field(description="Name and labels.")
    spec: Spec = Field(description="What to run.")
    status: Status = Field(default=Status(), description="What the operator observed; written by it alone.")
