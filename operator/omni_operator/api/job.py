"""`DiffusionRLJob` v1alpha1: the part of the specification that a run on one machine needs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

API_VERSION = "diffusionrl.io/v1alpha1"
KIND = "DiffusionRLJob"
NAME_PATTERN = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
SCORERS = ("brightness", "color", "http", "jpeg", "shapes")

Positive = Annotated[int, Field(ge=1)]


class Spec(BaseModel):
    """Base of all parts: unknown fields are refused, values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True)


class Metadata(Spec):
    """Name and labels."""

    name: str = Field(
        pattern=NAME_PATTERN, max_length=43,
        description="Name of the job: a DNS label that begins with a letter, at most 43 characters.",
    )  # fmt: skip
    labels: dict[str, str] = Field(default_factory=dict, description="Labels, passed to what the job creates.")
    annotations: dict[str, str] = Field(default_factory=dict, description="Annotations.")


class Lora(Spec):
    """A low-rank adapter; without it all weights of the transformer are trained."""

    rank: Positive = Field(default=16, description="Rank of the adapter.")
    alpha: Positive = Field(default=32, description="Scale: the adapter's output is multiplied by alpha / rank.")
    target_modules: tuple[str, ...] = Field(
        default=("attn.to_q", "attn.to_k", "attn.to_v", "attn.to_out.0"), min_length=1,
        description="Names (or endings of names) of the linear layers that the adapter wraps.",
    )  # fmt: skip


class Model(Spec):
    """What is trained."""

    base: str = Field(description="Folder of the model in diffusers' layout; relative to this file.")
    lora: Lora | None = Field(default=None, description="Train an adapter; leave out to train all weights.")


class Algorithm(Spec):
    """How it is trained."""

    name: Literal["FlowGRPO"] = Field(default="FlowGRPO", description="The algorithm.")
    entrypoint: tuple[str, ...] = Field(
        default=("python3", "-m", "verl_omni.trainer.main_diffusion"), min_length=1,
        description="The trainer's command; the rendered settings are appended.",
    )  # fmt: skip
    overrides: tuple[str, ...] = Field(
        default=(), description="Further settings of the trainer, name=value, with the trainer's names."
    )


class Data(Spec):
    """The prompts."""

    train: str = Field(description="Prompts to train on: .jsonl or .parquet; relative to this file.")
    validation: str | None = Field(default=None, description="Held-out prompts; leave out for no evaluation.")
    prompt_length: Positive = Field(default=77, description="Tokens of the longest prompt.")


class RewardFunction(Spec):
    """One of several rewards."""

    scorer: str | None = Field(default=None, description=f"A scorer by name: {', '.join(SCORERS)}.")
    path: str | None = Field(default=None, description="A Python file with the function; relative to this file.")
    name: str = Field(default="compute_score", description="The function in that file.")
    weight: float = Field(default=1.0, description="Its weight in the sum.")
    required: bool = Field(default=True, description="Whether a failure stops the run; it counts 0 otherwise.")
    settings: dict[str, Any] = Field(default_factory=dict, description="Further arguments of the function.")

    @model_validator(mode="after")
    def _one_source(self) -> RewardFunction:
        if (self.scorer is None) == (self.path is None):
            raise ValueError("give either scorer or path")
        return self


class Reward(Spec):
    """What is wanted of a picture; exactly one of scorer, path and functions."""

    scorer: str | None = Field(default=None, description=f"A scorer by name: {', '.join(SCORERS)}.")
    settings: dict[str, Any] = Field(default_factory=dict, description="Further arguments of the scorer.")
    path: str | None = Field(default=None, description="A Python file with the function; relative to this file.")
    name: str = Field(default="compute_score", description="The function in that file.")
    functions: dict[str, RewardFunction] | None = Field(default=None, description="Several rewards, weighted.")
    workers: Positive = Field(default=1, description="Processes that score.")

    @model_validator(mode="after")
    def _one_kind(self) -> Reward:
        given = [kind for kind in ("scorer", "path", "functions") if getattr(self, kind)]
        if len(given) != 1:
            raise ValueError(f"give exactly one of scorer, path and functions, not {' and '.join(given) or 'none'}")
        if self.scorer is not None and self.scorer not in SCORERS:
            raise ValueError(f"unknown scorer {self.scorer!r}; one of {', '.join(SCORERS)}")
        return self


class ImageSettings(Spec):
    """What one picture is."""

    height: Annotated[int, Field(ge=8)] = Field(default=512, description="Pixels.")
    width: Annotated[int, Field(ge=8)] = Field(default=512, description="Pixels.")
    steps: Annotated[int, Field(ge=2)] = Field(default=10, description="Denoising steps.")
    guidance_scale: float = Field(default=1.0, ge=1.0, description="Classifier-free guidance; 1 means none.")
    max_sequence_length: Positive = Field(default=256, description="Tokens of the longest text encoder.")


class Window(Spec):
    """The steps that are drawn from the SDE and trained on."""

    size: Positive | None = Field(default=None, description="How many steps; the whole range when left out.")
    range: tuple[int, int] = Field(description="First step, and the step after the last.")

    @model_validator(mode="after")
    def _fits(self) -> Window:
        low, high = self.range
        if not 0 <= low < high:
            raise ValueError(f"range must be [low, high) with 0 <= low < high, not {list(self.range)}")
        if self.size is not None and self.size > high - low:
            raise ValueError(f"a window of {self.size} steps does not fit into {list(self.range)}")
        return self


class Sampler(Spec):
    """How noise enters."""

    type: Literal["sde", "cps", "dance_sde"] = Field(default="sde", description="The stochastic sampler.")
    noise_level: float = Field(default=0.7, gt=0, description="Scale of its noise.")
    window: Window | None = Field(default=None, description="Steps with noise; all but the last when left out.")


class AgentLoop(Spec):
    """Processes that turn prompts into requests."""

    workers: Positive = Field(default=1, description="How many.")


class Rollout(Spec):
    """Where samples come from."""

    placement: Literal["Colocated"] = Field(
        default="Colocated", description="Trainer and engine side by side; Separate is not built yet."
    )
    replicas: Positive = Field(default=1, description="Engines, each beside one rank of the trainer.")
    samples_per_prompt: Annotated[int, Field(ge=2)] = Field(
        default=8, description="Pictures of each prompt; a reward counts relative to the others of its prompt."
    )
    max_batch: Positive = Field(default=64, description="Requests that the engine runs together.")
    image: ImageSettings = Field(default_factory=ImageSettings, description="What one picture is.")
    sampler: Sampler = Field(default_factory=Sampler, description="How noise enters.")
    agent_loop: AgentLoop = Field(default_factory=AgentLoop, description="Agent-loop workers.")


class Trainer(Spec):
    """How long and how fast."""

    steps: Positive = Field(description="Training steps.")
    prompts_per_step: Positive = Field(default=8, description="Prompts of each step.")
    learning_rate: float = Field(default=1e-4, ge=0, description="Of AdamW; 0 is a control run.")
    micro_batch: Positive | None = Field(default=None, description="Pictures of a forward pass; all when left out.")
    evaluate_every_steps: Annotated[int, Field(ge=0)] = Field(
        default=20, description="Evaluate on held-out prompts this often; 0: only before and after."
    )
    seed: Annotated[int, Field(ge=0)] = Field(default=0, description="Seed of everything that is drawn.")


class Checkpoint(Spec):
    """What is kept to go on from."""

    every_steps: Annotated[int, Field(ge=0)] = Field(default=20, description="Save this often; 0: only at the end.")
    keep: Annotated[int, Field(ge=0)] = Field(default=3, description="Checkpoints kept; 0 keeps all.")
    resume: Literal["Auto", "Never"] = Field(default="Auto", description="Go on from the last checkpoint.")


class WeightSync(Spec):
    """How trained weights reach the engines."""

    transport: Literal["IPC"] = Field(default="IPC", description="In memory, between processes of one machine.")
    payload: Literal["LoRA", "Full"] | None = Field(
        default=None, description="What is sent; the adapter where there is one, when left out."
    )


class JobSpec(Spec):
    """The job."""

    model: Model = Field(description="What is trained.")
    algorithm: Algorithm = Field(default_factory=Algorithm, description="How it is trained.")
    data: Data = Field(description="The prompts.")
    reward: Reward = Field(description="What is wanted of a picture.")
    rollout: Rollout = Field(default_factory=Rollout, description="Where samples come from.")
    trainer: Trainer = Field(description="How long and how fast.")
    checkpoint: Checkpoint = Field(default_factory=Checkpoint, description="What is kept to go on from.")
    weight_sync: WeightSync = Field(default_factory=WeightSync, description="How weights reach the engines.")

    @model_validator(mode="after")
    def _consistent(self) -> JobSpec:
        payload = self.weight_sync.payload
        if payload == "LoRA" and self.model.lora is None:
            raise ValueError("weightSync.payload LoRA needs model.lora")
        if payload == "Full" and self.model.lora is not None:
            raise ValueError("weightSync.payload Full is for training all weights: leave out model.lora")
        window = self.rollout.sampler.window
        if window is not None and window.range[1] > self.rollout.image.steps:
            raise ValueError(
                f"rollout.sampler.window ends at step {window.range[1]}, "
                f"rollout.image.steps is {self.rollout.image.steps}"
            )
        samples = self.trainer.prompts_per_step * self.rollout.samples_per_prompt
        for what, parts in (
            ("rollout.replicas", self.rollout.replicas),
            ("agentLoop.workers", self.rollout.agent_loop.workers),
        ):
            if samples % parts:
                raise ValueError(f"{samples} pictures a step cannot be divided among {parts} {what}")
        return self


class DiffusionRLJob(Spec):
    """Reinforcement learning of a diffusion model."""

    api_version: Literal["diffusionrl.io/v1alpha1"] = Field(description="Version of this format.")
    kind: Literal["DiffusionRLJob"] = Field(description="Kind of this object.")
    metadata: Metadata = Field(description="Name and labels.")
    spec: JobSpec = Field(description="The job.")


def located(path: str, folder: Path) -> str:
    """A path of the specification: absolute ones and `pkg://` stay, others are relative to the file's folder."""
    if "://" in path or Path(path).is_absolute():
        return path
    return str((folder / path).resolve())
