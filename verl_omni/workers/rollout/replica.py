"""`DiffusionOutput`, which programs written for verl-omni import from this path."""

from __future__ import annotations

from verl_omni.workers.rollout.diffusion_output import DiffusionOutput

__all__ = ["DiffusionOutput"]
