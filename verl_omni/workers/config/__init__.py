"""Typed settings of rollout, model and actor."""

from .diffusion import *  # noqa: F403
from .diffusion import __all__ as __all__
