"""The trained model: transformer, LoRA, optimiser, checkpoints."""

from .actor import DiffusionActor

__all__ = ["DiffusionActor"]
