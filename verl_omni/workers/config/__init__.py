"""Typed settings of rollout, model and actor."""

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
    "DiffusionNFTLossConfig",
    "DiffusionModelConfig",
    "DiffusionOptimizerConfig",
    "DiffusionPipelineConfig",
    "DiffusionRolloutAlgoConfig",
    "DiffusionRolloutConfig",
    "DiffusionSamplingConfig",
    "FlowGRPOLossConfig",
]
