"""`spec.rollout`: how pictures are drawn."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field
from typing_extensions import override

from .base import Strict, Violation


class Engine(Strict):
    """The rollout engine."""

    type: Literal["vLLMOmni"] = Field(default="vLLMOmni", description="Which engine.")
    tensor_parallel_size: int = Field(default=1, ge=1, le=64, description="Accelerators that share one model.")
    max_batch_size: int = Field(default=64, ge=1, le=4096, description="Pictures drawn in one batch.")
    max_concurrent_requests: int = Field(default=256, ge=1, le=65536, description="Requests in flight.")


class AgentLoop(Strict):
    """Processes between the prompts and the engine."""

    workers: int = Field(default=1, ge=1, le=1024, description="How many.")


class Pipeline(Strict):
    """One picture."""

    height: int = Field(default=512, ge=8, le=8192, multiple_of=8, description="Pixels.")
    width: int = Field(default=512, ge=8, le=8192, multiple_of=8, description="Pixels.")
    steps: int = Field(default=10, ge=1, le=1000, description="Denoising steps.")
    guidance: float = Field(default=1.0, ge=0, le=100, description="Classifier-free guidance; 1 is none.")
    max_sequence_length: int = Field(default=256, ge=1, le=8192, description="Tokens of the longest text encoder.")


class Window(Strict):
    """Which denoising steps draw noise and are trained on."""

    size: int = Field(ge=1, le=1000, description="How many in a row.")
    start: int = Field(default=0, ge=0, le=1000, description="First step they may begin at.")
    end: int = Field(ge=1, le=1000, description="They end before this step. Wider than size: the place is random.")

    @override
    def rules(self) -> Iterator[Violation]:
        if self.start + self.size > self.end:
            yield Violation(("size",), f"{self.size} steps do not fit between start {self.start} and end {self.end}")


class Sampler(Strict):
    """How noise enters the sampler."""

    type: Literal["sde", "cps", "dance_sde"] = Field(
        default="sde",
        description="sde: Flow-GRPO (arXiv:2505.05470); cps: coefficient-preserving; dance_sde: DanceGRPO.",
    )
    noise_level: float = Field(default=0.7, gt=0, le=10, description="Scale of the noise.")
    window: Window | None = Field(default=None, description="Steps that draw noise. Default: all but the last.")


class Rollout(Strict):
    """Drawing pictures, several for every prompt."""

    placement: Literal["Colocated"] = Field(
        default="Colocated", description="Colocated: the engine takes turns with the trainer on its accelerators."
    )
    replicas: int = Field(default=1, ge=1, le=1024, description="Engines.")
    samples_per_prompt: int = Field(default=8, ge=1, le=1024, description="Pictures that are compared to each other.")
    engine: Engine = Field(default=Engine(), description="The rollout engine.")
    agent_loop: AgentLoop = Field(default=AgentLoop(), description="Processes between prompts and engine.")
    pipeline: Pipeline = Field(default=Pipeline(), description="One picture.")
    sampler: Sampler = Field(default=Sampler(), description="How noise enters.")

    @override
    def rules(self) -> Iterator[Violation]:
        window = self.sampler.window
        if window and window.end > self.pipeline.steps:
            yield Violation(
                ("sampler", "window", "end"), f"is {window.end}, but a picture has {self.pipeline.steps} steps"
            )
        if window is None and self.pipeline.steps < 2:
            yield Violation(
                ("pipeline", "steps"), "1 step without a window trains on nothing: the last step draws no noise"
            )
