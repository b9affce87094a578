"""`spec.rollout`: how pictures are drawn."""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType
from typing import Literal

from pydantic import Field
from typing_extensions import override

from .base import Cel, StrictModel, Violation

_ELASTIC = "elastic rollouts do not exist yet: the number of engines is fixed by the trainer's accelerators"
_SEPARATE = "engines in pods of their own do not exist yet: they share the pods and accelerators of the trainer"


class Engine(StrictModel):
    """The rollout engine."""

    not_yet = MappingProxyType(
        {"metricsPort": "the engine has no fixed port for metrics yet; Ray's metrics are scraped"}
    )

    type: Literal["vLLMOmni"] = Field(default="vLLMOmni", description="Which engine.")
    tensor_parallel_size: int = Field(default=1, ge=1, le=64, description="Accelerators that share one model.")
    max_batch_size: int = Field(default=64, ge=1, le=4096, description="Pictures drawn in one batch.")
    max_concurrent_requests: int = Field(default=256, ge=1, le=65536, description="Requests in flight.")


class AgentLoop(StrictModel):
    """Processes between the prompts and the engine."""

    workers: int = Field(default=1, ge=1, le=1024, description="How many.")


class Pipeline(StrictModel):
    """One picture."""

    height: int = Field(default=512, ge=8, le=8192, multiple_of=8, description="Pixels.")
    width: int = Field(default=512, ge=8, le=8192, multiple_of=8, description="Pixels.")
    steps: int = Field(default=10, ge=1, le=1000, description="Denoising steps.")
    guidance: float = Field(default=1.0, ge=0, le=100, description="Classifier-free guidance; 1 is none.")
    max_sequence_length: int = Field(default=256, ge=1, le=8192, description="Tokens of the longest text encoder.")


class Window(StrictModel):
    """Which denoising steps draw noise and are trained on."""

    size: int = Field(ge=1, le=1000, description="How many in a row.")
    start: int = Field(default=0, ge=0, le=1000, description="First step they may begin at.")
    end: int = Field(ge=1, le=1000, description="They end before this step. Wider than size: placement says where.")
    placement: Literal["Random", "Progressive"] = Field(
        default="Random",
        description="Random: drawn for each picture. Progressive: from start to end and again, one place for all "
        "(MixGRPO, arXiv:2507.21802).",
    )
    steps_per_place: int = Field(
        default=25, ge=1, le=10_000_000, description="Training steps for which a Progressive window stays."
    )

    cel = (Cel("self.start + self.size <= self.end", "size: so many steps do not fit between start and end", ".size"),)

    @override
    def violations(self) -> Iterator[Violation]:
        if self.start + self.size > self.end:
            yield Violation(("size",), f"{self.size} steps do not fit between start {self.start} and end {self.end}")


class Sampler(StrictModel):
    """How noise enters the sampler."""

    type: Literal["sde", "cps", "dance_sde"] = Field(
        default="sde",
        description="sde: Flow-GRPO (arXiv:2505.05470); cps: coefficient-preserving; dance_sde: DanceGRPO.",
    )
    noise_level: float = Field(
        default=0.7, ge=0, le=10, description="Scale of the noise. 0, none: not for FlowGRPO, which learns from noise."
    )
    window: Window | None = Field(default=None, description="Steps that draw noise. Default: all but the last.")


class Staleness(StrictModel):
    """How old the engines' weights may be. Cluster only."""

    max_versions: int = Field(default=1, ge=0, le=100_000, description="Versions behind the trainer.")
    max_seconds: int = Field(default=3600, ge=1, le=31_536_000, description="Seconds since the last update.")


class Rollout(StrictModel):
    """Drawing pictures, several for every prompt."""

    not_yet = MappingProxyType({
        **dict.fromkeys(("autoscaling", "minReplicas", "maxReplicas"), _ELASTIC),
        **dict.fromkeys(("placement", "accelerator", "updateStrategy"), _SEPARATE),
    })  # fmt: skip

    replicas: int = Field(default=1, ge=1, le=1024, description="Engines.")
    samples_per_prompt: int = Field(default=8, ge=1, le=1024, description="Pictures that are compared to each other.")
    engine: Engine = Field(default=Engine(), description="The rollout engine.")
    agent_loop: AgentLoop = Field(default=AgentLoop(), description="Processes between prompts and engine.")
    pipeline: Pipeline = Field(default=Pipeline(), description="One picture.")
    sampler: Sampler = Field(default=Sampler(), description="How noise enters.")
    staleness: Staleness = Field(default=Staleness(), description="How old the engines' weights may be.")

    cel = (
        Cel(
            "!has(self.sampler.window) || self.sampler.window.end <= self.pipeline.steps",
            "sampler.window.end: is more than pipeline.steps",
            ".sampler",
        ),
        Cel(
            "has(self.sampler.window) || self.pipeline.steps >= 2",
            "pipeline.steps: 1 step without a window trains on nothing: the last step draws no noise",
            ".pipeline",
        ),
    )

    @override
    def violations(self) -> Iterator[Violation]:
        window = self.sampler.window
        if window and window.end > self.pipeline.steps:
            yield Violation(
                ("sampler", "window", "end"), f"is {window.end}, but a picture has {self.pipeline.steps} steps"
            )
        if window is None and self.pipeline.steps < 2:
            yield Violation(
                ("pipeline", "steps"), "1 step without a window trains on nothing: the last step draws no noise"
            )
