"""Typed settings of model, actor and rollout."""

from .diffusion import *  # noqa: F403
from .diffusion import __all__ as __all__
