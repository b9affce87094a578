"""Typed settings of rollout, model and actor."""

from .actor import DiffusionActorConfig, DiffusionFSDPConfig, DiffusionLossConfig, DiffusionOptimizerConfig
from .model import DiffusionModelConfig
from .rollout import (
    DiffusionPipelineConfig,
    DiffusionRolloutAlgoConfig,
    DiffusionRolloutConfig,
    DiffusionSamplingConfig,
)

__all__ = [
    "DiffusionActorConfig",
    "DiffusionFSDPConfig",
    "DiffusionLossConfig",
    "DiffusionModelConfig",
    "DiffusionOptimizerConfig",
    "DiffusionPipelineConfig",
    "DiffusionRolloutAlgoConfig",
    "DiffusionRolloutConfig",
    "DiffusionSamplingConfig",
]
