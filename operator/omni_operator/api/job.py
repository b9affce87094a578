"""`DiffusionRLJob`, the one kind that users write."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from typing_extensions import override

from .base import Strict, Violation
from .data import Data
from .model import Model
from .reward import Reward
from .rollout import Rollout
from .training import Algorithm, Checkpoint, Trainer, WeightSync

API_VERSION = "diffusionrl.io/v1alpha1"
KIND = "DiffusionRLJob"
NAME_LIMIT = 43  # of 63: what is derived from a job's name (attempt, role, KubeRay's suffixes) must fit too
DNS_1035 = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"


class Metadata(BaseModel):
    """The job's name and labels; what a cluster adds is kept out of the way, not refused."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    name: Annotated[str, StringConstraints(max_length=NAME_LIMIT, pattern=DNS_1035)] = Field(
        description=f"Lower-case letters, digits and '-', a letter first, at most {NAME_LIMIT} characters."
    )
    namespace: str | None = Field(default=None, description="Namespace on a cluster.")
    labels: dict[str, str] = Field(default_factory=dict, description="Labels on a cluster.")
    annotations: dict[str, str] = Field(default_factory=dict, description="Annotations on a cluster.")


class Spec(Strict):
    """What to run."""

    model: Model = Field(description="What is trained.")
    data: Data = Field(description="Prompts.")
    reward: Reward = Field(description="What a picture is worth.")
    trainer: Trainer = Field(description="The trainer's size and pace.")
    algorithm: Algorithm = Field(default=Algorithm(), description="How it learns.")
    rollout: Rollout = Field(default=Rollout(), description="How pictures are drawn.")
    weight_sync: WeightSync = Field(default=WeightSync(), description="How new weights reach the engine.")
    checkpoint: Checkpoint = Field(default=Checkpoint(), description="What a run can go on from.")
    seed: int = Field(default=0, ge=0, le=2**31 - 1, description="Of everything that is drawn at random.")

    @override
    def rules(self) -> Iterator[Violation]:
        yield from self._weights_rules()
        yield from self._size_rules()

    def _weights_rules(self) -> Iterator[Violation]:
        at, lora = ("weightSync", "payload"), self.model.lora.enabled
        if self.weight_sync.payload == "LoRA" and not lora:
            yield Violation(at, "is LoRA, but spec.model.lora.enabled is false: there is no adapter to send")
        if self.weight_sync.payload == "Full" and lora:
            yield Violation(at, "is Full, but spec.model.lora.enabled is true: an adapter is sent as LoRA")

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
        if self.algorithm.name == "FlowGRPO" and self.rollout.samples_per_prompt < 2:
            yield Violation(
                ("rollout", "samplesPerPrompt"), "FlowGRPO compares pictures of one prompt: at least 2 are needed"
            )


class DiffusionRLJob(Strict):
    """Reinforcement learning of a diffusion model."""

    api_version: Literal["diffusionrl.io/v1alpha1"] = Field(description="Version of this form.")
    kind: Literal["DiffusionRLJob"] = Field(description="Kind of object.")
    metadata: Metadata = Field(description="Name and labels.")
    spec: Spec = Field(description="What to run.")
    status: dict[str, Any] | None = Field(default=None, description="Written by the operator; ignored here.")
