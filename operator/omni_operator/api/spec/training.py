"""`spec.algorithm`, `spec.trainer`, `spec.checkpoint`: training algorithm, trainer and checkpoints."""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field
from typing_extensions import override

from omni_operator.api.base import AbsolutePath, Cel, Line, ObjectName, Rule, StrictModel, Violation
from omni_operator.api.overrides.override_names import (
    describe_reserved,
    describe_unsupported,
    find_repeated,
    parse_value,
)
from verl_omni.settings_schema.declarations import FIELDS, OF_THE_ALGORITHM, OPTIM
from verl_omni.settings_schema.layout import default_of
from verl_omni.workers.algorithms.registered import job_names

from .pod_template import PodTemplate
from .pods import Accelerator, Resources, SharedMemory

ENTRYPOINT = ("python3", "-m", "verl_omni.trainer.main_diffusion")
_NAMES = job_names()
# Algorithm -> the trainer's `loss_mode`, which selects its settings.
LOSSES = {name: algorithm for name, (algorithm, _) in _NAMES.items()}
# Algorithm that trains on recorded steps -> the trainer's estimator of advantages.
ESTIMATORS = {name: meaning.estimator for name, (_, meaning) in _NAMES.items() if meaning.estimator}
_PAPERS = ", ".join(f"{name} (arXiv:{meaning.paper})" for name, (_, meaning) in _NAMES.items())
if TYPE_CHECKING:
    AlgorithmName = str
else:
    AlgorithmName = Literal[(*LOSSES, "Custom")]
LOSS_GROUP = "actor_rollout_ref.actor.diffusion_loss."
SOURCE = "algorithm.sample_source"
OVERRIDE = re.compile(r"^(\+{0,2})([A-Za-z_][A-Za-z0-9_.$-]*)=(.*)$", re.DOTALL)
_RESERVED_MESSAGE = (
    "an override must not set what a field of the job sets; `drl validate` names the override and the field"
)


def _no_reserved() -> str:
    """CEL rule: no override sets a reserved setting, a setting inside one, or a group around one."""
    around = {name.rpartition(".")[0] for name in FIELDS} - {""}
    around |= {parent.rpartition(".")[0] for parent in around} - {""}
    always = {f"{name}{end}" for name in FIELDS if name not in OF_THE_ALGORITHM for end in "=."}
    algorithm = _none_begins({f"{name}{end}" for name in OF_THE_ALGORITHM for end in "=."})
    return f"{_none_begins(always | {f'{name}=' for name in around})} && (self.name == 'Custom' || {algorithm})"


def _none_begins(stems: set[str]) -> str:
    """CEL: no override begins with one of `stems`, whatever its mark."""
    listed = ", ".join(f"'{stem}'" for stem in sorted(stems))
    begins = " || ".join(f"o.startsWith({plus}s)" for plus in ("", "'+' + ", "'++' + "))
    # In this order most jobs, which have no overrides, cost the API server nothing.
    return f"self.overrides.all(o, ![{listed}].exists(s, {begins}))"


class Algorithm(StrictModel):
    """Training algorithm, and overrides of trainer settings that have no field."""

    name: AlgorithmName = Field(
        default="FlowGRPO",
        description=f"{_PAPERS}, or Custom: set by overrides, such as one of docs/guides/own-family.md. See "
        "docs/reference/algorithms.md.",
    )
    entrypoint: Annotated[tuple[Line, ...], Field(strict=False)] = Field(
        default=ENTRYPOINT,
        min_length=1,
        max_length=64,
        description="Command that starts the trainer; the overrides are appended as arguments.",
    )
    overrides: Annotated[tuple[Line, ...], Field(strict=False)] = Field(
        default=(),
        max_length=256,
        description="Trainer settings without a field here, each once and as name=value in Hydra's syntax. Names of "
        "the project's trainer are checked.",
    )

    cel = (
        Rule(
            "matches(item, '^[+]{0,2}[A-Za-z_][A-Za-z0-9_.$-]*=')",
            "overrides",
            "write each override as name=value",
            "{item!r} is not in the form name=value",
            each=True,
        ),
        Cel(_no_reserved(), _RESERVED_MESSAGE, ".overrides"),
    )

    @property
    def reads_pairs(self) -> bool:
        """Whether training reads pairs of images of the data set, and generates no samples."""
        sources = [match[3] for line in self.overrides if (match := OVERRIDE.match(line)) and match[2] == SOURCE]
        return bool(sources) and parse_value(sources[-1]) == "offline"

    @override
    def violations(self) -> Iterator[Violation]:
        yield from super().violations()
        for index, line in enumerate(self.overrides):
            match = OVERRIDE.match(line)
            if match is None:
                continue  # a rule refuses it
            if self.name == "Custom" and (match[2] in OF_THE_ALGORITHM or match[2].startswith(LOSS_GROUP)):
                continue  # a module of the user's may register it (docs/guides/own-family.md)
            text = describe_reserved(match[2])
            if text is None and self.entrypoint == ENTRYPOINT:
                text = describe_unsupported(match[2], match[3], LOSSES.get(self.name))
            if text is not None:
                yield Violation(("overrides", index), text)
        if self.entrypoint == ENTRYPOINT:
            yield from self._repeated()

    def _repeated(self) -> Iterator[Violation]:
        """CEL would compare each pair of names, which costs more than a rule may."""
        matches = {index: match for index, line in enumerate(self.overrides) if (match := OVERRIDE.match(line))}
        places = list(matches)
        for index, earlier, name in find_repeated([(match[2], match[3]) for match in matches.values()]):
            text = f"{name}: already set by overrides[{places[earlier]}]; remove one of the two"
            yield Violation(("overrides", places[index]), text)


class Batch(StrictModel):
    """Size of a training step and how it is split."""

    prompts: int = Field(
        default=default_of("data.train_batch_size"),
        ge=1,
        le=65536,
        description="Prompts in one training step; each is sampled rollout.samplesPerPrompt times.",
    )
    mini_batch_prompts: int | None = Field(
        default=None,
        ge=1,
        le=65536,
        description="Prompts in one optimizer step; must divide prompts. Default: all prompts of the step.",
    )
    micro_batch_samples: int | None = Field(
        default=None,
        ge=1,
        le=65536,
        description="Samples in one forward and backward pass; smaller values need less memory. Default: the "
        "mini-batch.",
    )

    cel = (
        Rule(
            "self.mini_batch_prompts is None or self.prompts % self.mini_batch_prompts == 0",
            "miniBatchPrompts",
            "must divide spec.trainer.batch.prompts",
            "is {self.mini_batch_prompts}: must divide spec.trainer.batch.prompts, which is {self.prompts}",
        ),
    )


class Trainer(StrictModel):
    """Trainer: pods, accelerators, training steps, learning rate."""

    replicas: int = Field(
        default=1,
        ge=1,
        le=1024,
        description="Number of trainer pods, each with the accelerators below. In a local run, all accelerators are "
        "of one machine.",
    )
    accelerator: Accelerator = Field(default=Accelerator.model_construct(), description="Accelerators of one replica.")
    total_steps: int = Field(ge=1, le=10_000_000, description="Training steps of the whole run, over all attempts.")
    batch: Batch = Field(default=Batch.model_construct(), description="Size of a training step and how it is split.")
    precision: Literal["bfloat16", "float32"] | None = Field(
        default=None,
        description="Dtype that the model computes in, and of its frozen weights. Trained weights, sums of gradients "
        "and the optimizer state are always float32. Default: bfloat16 with accelerators, float32 without.",
    )
    learning_rate: float = Field(default=default_of(f"{OPTIM}.lr"), ge=0, le=1, description="Learning rate of AdamW.")
    eval_every_steps: int = Field(
        default=default_of("trainer.test_freq"),
        ge=0,
        le=10_000_000,
        description="Training steps between evaluations on data.validation. 0: only before and after training.",
    )
    resources: Resources = Field(
        default=Resources.model_construct(),
        description="Requests and limits of a trainer pod; accelerators and sharedMemory are added. Default: requests "
        "of 1 CPU and 4Gi, no limits. Cluster only.",
    )
    shared_memory: SharedMemory = Field(
        default=SharedMemory.model_construct(), description="/dev/shm of a trainer pod. Cluster only."
    )
    pod_template: PodTemplate = Field(
        default_factory=dict,
        description="Strategic merge patch for the trainer's pod template: lists of containers, volumes and variables "
        "merge by name. Cluster only.",
    )

    @property
    def accelerators(self) -> int:
        """Accelerators of all replicas."""
        return self.replicas * self.accelerator.count


class Checkpoint(StrictModel):
    """Checkpoints of a run, and where they are kept."""

    every_steps: int = Field(
        default=default_of("trainer.save_freq"),
        ge=0,
        le=10_000_000,
        description="Training steps between checkpoints. 0: only at the end.",
    )
    keep: int = Field(
        default=default_of("trainer.max_actor_ckpt_to_keep"),
        ge=0,
        le=1000,
        description="Number of newest checkpoints to keep. 0: all.",
    )
    adapter_every_steps: int = Field(
        default=default_of("trainer.adapter_save_freq"),
        ge=0,
        le=10_000_000,
        description="Training steps between adapters that are saved without the rest of a checkpoint, ready for "
        "inference, in the run folder's adapters/. 0: none.",
    )
    keep_adapters: int = Field(
        default=default_of("trainer.max_adapters_to_keep"),
        ge=0,
        le=1000,
        description="Number of newest of these to keep. 0: all.",
    )
    resume: Literal["Auto", "Never"] = Field(
        default="Auto", description="Auto: resume from the newest checkpoint. Never: start over."
    )
    claim_name: ObjectName | None = Field(
        default=None,
        description="PersistentVolumeClaim for checkpoints and results. Without it they are deleted with the pods. "
        "Several trainer pods need ReadWriteMany. Cluster only.",
    )
    path: AbsolutePath = Field(
        default="/runs",
        description="Mount path of the claim; the run folder is <path>/<name of the job>. Cluster only.",
    )
