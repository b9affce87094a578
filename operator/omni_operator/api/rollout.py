"""`spec.rollout`: how samples are generated."""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType
from typing import Literal

from pydantic import Field
from typing_extensions import override

from .base import Cel, StrictModel, Violation

_ELASTIC = "elastic rollouts do not exist yet: the trainer's accelerators fix the number of engines"
_SEPARATE = "engines in pods of their own do not exist yet: they share the pods and accelerators of the trainer"
WINDOW_TOO_LONG = "must not be more than spec.rollout.pipeline.steps"
NOTHING_TO_TRAIN = "must be at least 2 without spec.rollout.sampler.window: the last step adds no noise to train on"
WINDOW_DOES_NOT_FIT = "must not be more than the steps between start and end of the window"


class Engine(StrictModel):
    """The inference engine that generates samples."""

    not_yet = MappingProxyType(
        {"metricsPort": "the engine has no fixed port for metrics yet; Ray's metrics are scraped"}
    )

    type: Literal["vLLMOmni"] = Field(default="vLLMOmni", description="Inference engine.")
    tensor_parallel_size: int = Field(
        default=1, ge=1, le=64, description="Accelerators that share one copy of the model. They must be in one pod."
    )
    dtype: Literal["bfloat16", "float32"] | None = Field(
        default=None,
        description="Dtype of the engine's weights. Default: bfloat16 with accelerators, float32 without.",
    )
    max_batch_size: int = Field(default=64, ge=1, le=4096, description="Maximum samples in one engine batch.")
    max_concurrent_requests: int | None = Field(
        default=None,
        ge=1,
        le=65536,
        description="Maximum samples that one agent-loop worker has in generation. Default: the workers together have "
        "twice maxBatchSize for each engine.",
    )


class AgentLoop(StrictModel):
    """Agent-loop workers, the processes that send prompts to the engines and collect samples."""

    workers: int | None = Field(
        default=None,
        ge=1,
        le=1024,
        description="Number of agent-loop workers, spread over the pods. Default: one for each pod and for each eight "
        "engines, or a few more to divide the samples of a step.",
    )


class Pipeline(StrictModel):
    """Settings of the diffusion pipeline, the same for every sample."""

    height: int = Field(default=512, ge=8, le=8192, multiple_of=8, description="Height of an image, in pixels.")
    width: int = Field(default=512, ge=8, le=8192, multiple_of=8, description="Width of an image, in pixels.")
    steps: int = Field(default=10, ge=1, le=1000, description="Denoising steps.")
    guidance: float = Field(
        default=1.0, ge=0, le=100, description="Classifier-free guidance scale. Default: 1, no guidance."
    )
    max_sequence_length: int = Field(
        default=256, ge=1, le=8192, description="Maximum tokens of a prompt in the longest text encoder."
    )


class Window(StrictModel):
    """Denoising steps that add noise and are trained on; the other steps follow the ODE."""

    size: int = Field(ge=1, le=1000, description="Number of consecutive steps.")
    start: int = Field(default=0, ge=0, le=1000, description="First step that the window may cover, counted from 0.")
    end: int = Field(
        ge=1,
        le=1000,
        description="The window ends before this step. If start to end is longer than size, see placement.",
    )
    placement: Literal["Random", "Progressive"] | None = Field(
        default=None,
        description="Random: a random place for each sample. Progressive: one place for all samples, which moves from "
        "start to end and begins again. Default: Progressive with MixGRPO, Random otherwise.",
    )
    steps_per_place: int = Field(
        default=25, ge=1, le=10_000_000, description="Training steps before a Progressive window moves on."
    )

    cel = (Cel("self.start + self.size <= self.end", WINDOW_DOES_NOT_FIT, ".size"),)

    @override
    def violations(self) -> Iterator[Violation]:
        if self.start + self.size > self.end:
            yield Violation(("size",), f"is {self.size}: {WINDOW_DOES_NOT_FIT} ({self.start} to {self.end})")


class Sampler(StrictModel):
    """How the sampler adds noise between denoising steps."""

    type: Literal["sde", "cps", "dance_sde"] | None = Field(
        default=None,
        description="sde: Flow-GRPO (arXiv:2505.05470). cps: coefficient-preserving sampling. dance_sde: DanceGRPO. "
        "Default: dance_sde with DanceGRPO, sde otherwise.",
    )
    noise_level: float = Field(
        default=0.7,
        ge=0,
        le=10,
        description="Scale of the noise. 0: none, which FlowGRPO, DanceGRPO, MixGRPO, GRPOGuard and FlowDPPO refuse: "
        "they learn from it.",
    )
    window: Window | None = Field(
        default=None, description="Steps that add noise. Default: all but the last step, whose noise is never denoised."
    )


class Staleness(StrictModel):
    """How old an engine's weights may be before the condition WeightsInSync turns False. Cluster only."""

    max_versions: int = Field(default=1, ge=0, le=100_000, description="Versions that an engine may be behind.")
    max_seconds: int = Field(
        default=3600, ge=1, le=31_536_000, description="Seconds since the engines last got new weights."
    )


class Rollout(StrictModel):
    """How samples are generated: several images for each prompt."""

    not_yet = MappingProxyType({
        **dict.fromkeys(("autoscaling", "minReplicas", "maxReplicas"), _ELASTIC),
        **dict.fromkeys(("placement", "accelerator", "updateStrategy"), _SEPARATE),
    })  # fmt: skip

    replicas: int = Field(
        default=1,
        ge=1,
        le=1024,
        description="Number of engines: replicas x engine.tensorParallelSize must be all accelerators of the trainer.",
    )
    samples_per_prompt: int = Field(
        default=8, ge=1, le=1024, description="Samples of one prompt, which the algorithm compares with each other."
    )
    engine: Engine = Field(default=Engine(), description="The inference engine that generates samples.")
    agent_loop: AgentLoop = Field(default=AgentLoop(), description="Workers that send prompts to the engines.")
    pipeline: Pipeline = Field(default=Pipeline(), description="Image size, denoising steps, guidance.")
    sampler: Sampler = Field(default=Sampler(), description="How the sampler adds noise.")
    staleness: Staleness = Field(default=Staleness(), description="How old an engine's weights may be.")

    cel = (
        Cel("!has(self.sampler.window) || self.sampler.window.end <= self.pipeline.steps", WINDOW_TOO_LONG, ".sampler"),
        Cel("has(self.sampler.window) || self.pipeline.steps >= 2", NOTHING_TO_TRAIN, ".pipeline"),
    )

    @override
    def violations(self) -> Iterator[Violation]:
        window, steps = self.sampler.window, self.pipeline.steps
        if window and window.end > steps:
            yield Violation(("sampler", "window", "end"), f"is {window.end}: {WINDOW_TOO_LONG}, which is {steps}")
        if window is None and steps < 2:
            yield Violation(("pipeline", "steps"), NOTHING_TO_TRAIN)
