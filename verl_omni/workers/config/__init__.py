"""Typed settings of rollout, model and actor."""

from .diffusion import (
    DiffusionActorConfig,
    DiffusionDPOLossConfig,
    DiffusionFSDPConfig,
    DiffusionLossConfig,
    DiffusionModelConfig,
    DiffusionNFTLossConfig,
    DiffusionOptimizerConfig,
    DiffusionPipelineConfig,
    DiffusionRolloutAlgoConfig,
    DiffusionRolloutConfig,
    DiffusionSamplingConfig,
    FlowGRPOLossConfig,
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
