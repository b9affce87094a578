"""`spec.algorithm`, `spec.trainer`, `spec.checkpoint`: how the model learns."""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import MappingProxyType
from typing import Annotated, Literal

from pydantic import Field
from typing_extensions import override

from .base import AbsolutePath, Cel, Line, ObjectName, StrictModel, Violation
from .override_names import DEFAULT_LOSS, describe_reserved, describe_unknown
from .pod_template import PodTemplate
from .pods import Accelerator, Resources, SharedMemory
from .reserved import RESERVED

ENTRYPOINT = ("python3", "-m", "verl_omni.trainer.main_diffusion")
# The trainer's names of algorithms; it has the settings of each.
LOSSES = {"FlowGRPO": "flow_grpo", "DiffusionNFT": "diffusion_nft", "DiffusionDPO": "diffusion_dpo"}
_OVERRIDE = re.compile(r"^(\+{0,2})([A-Za-z_][A-Za-z0-9_.$-]*)=")
_RESERVED_MESSAGE = "overrides: name=value each, and not what a field of the job sets; `drl validate` says which one"


def _no_reserved() -> str:
    """In CEL: no override begins like a reserved setting, a name inside one, or a name around one."""
    around = {name.rpartition(".")[0] for name in RESERVED} - {""}
    around |= {parent.rpartition(".")[0] for parent in around} - {""}
    stems = sorted({f"{name}{end}" for name in RESERVED for end in "=."} | {f"{name}=" for name in around})
    listed = ", ".join(f"'{stem}'" for stem in stems)
    begins = " || ".join(f"o.startsWith({plus}s)" for plus in ("", "'+' + ", "'++' + "))
    return f"[{listed}].all(s, !self.overrides.exists(o, {begins}))"


class Algorithm(StrictModel):
    """The algorithm, and whatever of the trainer's settings has no field here."""

    not_yet = MappingProxyType({"configRef": "recipes in ConfigMaps do not exist yet: write their lines in overrides"})

    name: Literal["FlowGRPO", "DiffusionNFT", "DiffusionDPO", "Custom"] = Field(
        default="FlowGRPO",
        description="FlowGRPO (arXiv:2505.05470), DiffusionNFT (arXiv:2509.16117), DiffusionDPO (arXiv:2311.12908) "
        "with pairs of its own, or Custom: the overrides say it. rollout.sampler makes DanceGRPO and MixGRPO of the "
        "first. See docs/algorithms.md.",
    )
    entrypoint: Annotated[tuple[Line, ...], Field(strict=False)] = Field(
        default=ENTRYPOINT, min_length=1, max_length=64, description="The trainer's command; overrides are appended."
    )
    overrides: Annotated[tuple[Line, ...], Field(strict=False)] = Field(
        default=(), max_length=256, description="Settings of the trainer, name=value each, in Hydra's notation."
    )

    cel = (
        Cel(
            r"self.overrides.all(o, o.matches('^[+]{0,2}[A-Za-z_][A-Za-z0-9_.$-]*='))",
            "overrides: write name=value each",
            ".overrides",
        ),
        Cel(_no_reserved(), _RESERVED_MESSAGE, ".overrides"),
    )

    @override
    def violations(self) -> Iterator[Violation]:
        for place, line in enumerate(self.overrides):
            match = _OVERRIDE.match(line)
            if match is None:
                yield Violation(("overrides", place), f"{line!r} is not name=value")
            elif text := describe_reserved(match[2]) or self._unknown(match[1], match[2]):
                yield Violation(("overrides", place), text)

    def _unknown(self, mark: str, name: str) -> str | None:
        """Settings of another program than the project's trainer cannot be checked here."""
        if self.entrypoint != ENTRYPOINT:
            return None
        return describe_unknown(mark, name, LOSSES.get(self.name, DEFAULT_LOSS))


class Batch(StrictModel):
    """How much one step learns from."""

    prompts: int = Field(default=8, ge=1, le=65536, description="Prompts a step.")
    mini_batch_prompts: int | None = Field(
        default=None, ge=1, le=65536, description="Prompts an optimizer step. Default: all of the step."
    )
    micro_batch_samples: int | None = Field(
        default=None, ge=1, le=65536, description="Pictures a forward pass, for memory. Default: the mini-batch."
    )

    cel = (
        Cel(
            "!has(self.miniBatchPrompts) || self.prompts % self.miniBatchPrompts == 0",
            "miniBatchPrompts: must divide prompts",
            ".miniBatchPrompts",
        ),
    )

    @override
    def violations(self) -> Iterator[Violation]:
        if self.mini_batch_prompts and self.prompts % self.mini_batch_prompts:
            yield Violation(("miniBatchPrompts",), f"{self.mini_batch_prompts} does not divide prompts, {self.prompts}")


class Trainer(StrictModel):
    """The trainer's size and pace."""

    replicas: int = Field(default=1, ge=1, le=1024, description="Nodes; on one machine, processes.")
    accelerator: Accelerator = Field(default=Accelerator(), description="The devices of one replica.")
    total_steps: int = Field(ge=1, le=10_000_000, description="Steps of the whole run.")
    batch: Batch = Field(default=Batch(), description="How much one step learns from.")
    learning_rate: float = Field(default=1e-4, ge=0, le=1, description="Of AdamW.")
    eval_every_steps: int = Field(
        default=20, ge=0, le=10_000_000, description="Draw the held-out prompts every so often. 0: first and last."
    )
    resources: Resources = Field(
        default=Resources(),
        description="Requests and limits of a pod; devices are added. Default: requests of 1, 4Gi. Cluster only.",
    )
    shared_memory: SharedMemory = Field(default=SharedMemory(), description="/dev/shm of a pod. Cluster only.")
    pod_template: PodTemplate = Field(
        default_factory=dict,
        description="Merged into the workers' pod template by strategy: lists by name. Cluster only.",
    )

    @property
    def devices(self) -> int:
        """Devices of all replicas."""
        return self.replicas * self.accelerator.count


class Checkpoint(StrictModel):
    """What a run can go on from."""

    every_steps: int = Field(default=20, ge=0, le=10_000_000, description="Save every so often. 0: only at the end.")
    keep: int = Field(default=3, ge=0, le=1000, description="Newest checkpoints to keep. 0: all.")
    resume: Literal["Auto", "Never"] = Field(default="Auto", description="Auto: go on from the newest checkpoint.")
    claim_name: ObjectName | None = Field(
        default=None,
        description="PersistentVolumeClaim of the run folder, to outlive attempts. Several pods: RWX. Cluster only.",
    )
    path: AbsolutePath = Field(
        default="/runs", description="Where the claim is mounted; run folders are in it. Cluster only."
    )
