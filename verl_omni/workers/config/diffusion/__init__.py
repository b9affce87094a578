"""Typed settings of a diffusion model, its training and its rollout."""

from .actor import (
    DiffusionActorConfig,
    DiffusionCheckpointConfig,
    DiffusionFSDPConfig,
    DiffusionLossConfig,
    DiffusionMixedPrecisionConfig,
    DiffusionOptimizerConfig,
    FSDPDiffusionActorConfig,
)
from .model import DiffusionModelConfig
from .rollout import (
    DiffusionPipelineConfig,
    DiffusionRolloutAlgoConfig,
    DiffusionRolloutConfig,
    DiffusionSamplingConfig,
)

__all__ = [
    "DiffusionActorConfig",
    "DiffusionCheckpointConfig",
    "DiffusionFSDPConfig",
    "DiffusionLossConfig",
    "DiffusionMixedPrecisionConfig",
    "DiffusionModelConfig",
    "DiffusionOptimizerConfig",
    "DiffusionPipelineConfig",
    "DiffusionRolloutAlgoConfig",
    "DiffusionRolloutConfig",
    "DiffusionSamplingConfig",
    "FSDPDiffusionActorConfig",
]
