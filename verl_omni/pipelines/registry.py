"""Which pipeline of ours serves a model, and which adapter trains it, by the model's architecture.

Both are named here and imported by whoever needs them: the engine, or the trainer.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast

from torch import Tensor


@dataclass(frozen=True, slots=True)
class RolloutPipeline:
    """Where the engine finds the pipeline class and its post-processing."""

    module: str
    pipeline: str
    post_process: str

    @property
    def qualified_name(self) -> str:
        """`module.Class`, as the engine's `custom_pipeline_args` wants it."""
        return f"{self.module}.{self.pipeline}"


ROLLOUT_PIPELINES = {
    "StableDiffusion3Pipeline": RolloutPipeline(
        module="verl_omni.pipelines.sd3.rollout",
        pipeline="SD3RolloutPipeline",
        post_process="get_sd3_rollout_post_process_func",
    ),
}
TRAINING_ADAPTERS = {"StableDiffusion3Pipeline": "verl_omni.pipelines.sd3.training"}
ALGORITHMS = ("flow_grpo", "diffusion_nft", "diffusion_dpo")


class TrainingAdapter(Protocol):
    """What the trainer needs to know of a model: a module of `verl_omni.pipelines`."""

    def velocity(
        self, transformer: Any, batch: Mapping[str, Tensor], x: Tensor, timestep: Tensor, guidance_scale: float
    ) -> Tensor:
        """What the model predicts for latents `x` [B, ...] at `timestep` [B], float32 of the same shape."""


def training_adapter(architecture: str | None) -> TrainingAdapter:
    """Find the training adapter of a model.

    Raises:
        ValueError: there is none for the architecture; the message lists those that have one.
    """
    if architecture not in TRAINING_ADAPTERS:
        raise ValueError(f"No training adapter for model {architecture!r}; one of {sorted(TRAINING_ADAPTERS)}")
    return cast(TrainingAdapter, importlib.import_module(TRAINING_ADAPTERS[architecture]))


def rollout_pipeline(architecture: str | None, algorithm: str) -> RolloutPipeline:
    """Find the rollout pipeline of a model.

    Raises:
        ValueError: no pipeline is known for the architecture or the algorithm; the message lists those that are.
    """
    if algorithm not in ALGORITHMS:
        raise ValueError(f"No rollout pipeline for algorithm {algorithm!r}; one of {sorted(ALGORITHMS)}")
    if architecture not in ROLLOUT_PIPELINES:
        raise ValueError(f"No rollout pipeline for model {architecture!r}; one of {sorted(ROLLOUT_PIPELINES)}")
    return ROLLOUT_PIPELINES[architecture]


def embed_length(architecture: str | None, clip_length: int, max_sequence_length: int) -> int:
    """Rows of the prompt embeddings that a pipeline makes, so that nothing is cut and nothing is padded.

    Stable Diffusion 3 puts the CLIP tokens before the T5 tokens and has no attention mask: a padded row would be
    attended to.
    """
    return clip_length + max_sequence_length if architecture == "StableDiffusion3Pipeline" else max_sequence_length
