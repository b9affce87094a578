"""Documented import path of `maybe_per_rollout_seeds`."""

from .sampling import maybe_per_rollout_seeds

__all__ = ["maybe_per_rollout_seeds"]
