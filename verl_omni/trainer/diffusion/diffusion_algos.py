"""Decorators of losses and estimators of advantages at their import path in the reference, and their types."""

from collections.abc import Callable
from typing import Any, TypeVar

from verl_omni.extensions import register_advantage, register_loss
from verl_omni.workers.algorithms.reference_loss import DiffusionLossFn, DiffusionLossResult, check_keys

Loss = TypeVar("Loss", bound=type[DiffusionLossFn])
Function = TypeVar("Function", bound=Callable[..., Any])
__all__ = ["DiffusionLossFn", "DiffusionLossResult", "register_diffusion_adv_est", "register_diffusion_loss"]


def register_diffusion_loss(name: str) -> Callable[[Loss], Loss]:
    """Decorator of a subclass of `DiffusionLossFn`; its name is a `loss_mode`, with the settings of Flow-GRPO.

    Raises:
        TypeError: it is another class, or a function. ValueError: the name is taken, or the loss reads something that
            this trainer does not have.
    """

    def decorate(loss: Loss) -> Loss:
        if not (isinstance(loss, type) and issubclass(loss, DiffusionLossFn)):
            raise TypeError(
                f"register_diffusion_loss({name!r}) takes a subclass of DiffusionLossFn, and got {loss!r}; "
                "verl_omni.extensions.register_loss takes a function"
            )
        check_keys(loss)
        return register_loss(name)(loss)

    return decorate


def register_diffusion_adv_est(name: str) -> Callable[[Function], Function]:
    """Decorator of a function `(rewards, groups, settings) -> advantages`; its name is an `algorithm.adv_estimator`.

    The arguments are this project's (`verl_omni.extensions.register_advantage`); the reference's are not documented.
    """
    return register_advantage(name)
