"""Typed settings of a diffusion model's rollout, of the model and of its training."""

from .actor import (
    DiffusionActorConfig,
    DiffusionDPOLossConfig,
    DiffusionFSDPConfig,
    DiffusionLossConfig,
    DiffusionNFTLossConfig,
    DiffusionOptimizerConfig,
    FlowGRPOLossConfig,
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
    "DiffusionDPOLossConfig",
    "DiffusionFSDPConfig",
    "DiffusionLossConfig",
    "DiffusionModelConfig",
    "DiffusionNFTLossConfig",
    "DiffusionOptimizerConfig",
    "DiffusionPipelineConfig",
    "DiffusionRolloutAlgoConfig",
    "DiffusionRolloutConfig",
    "DiffusionSamplingConfig",
    "FlowGRPOLossConfig",
]
