"""Policy losses in the reference's form: a class that gets mappings of tensors and returns a loss with metrics.

The form is from its pull request 101 (github.com/verl-project/verl-omni/pull/101, May 2026).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from verl_omni.utils.metrics.metric_names import is_maximum
from verl_omni.workers.actor.policy import Batch
from verl_omni.workers.algorithms.flow_grpo import COMPARED, UserObjective

MODEL_OUTPUT = ("log_probs",)
DATA = ("old_log_probs", "advantages")
METRIC = "metric/"  # prefix of a loss's own metrics among the measurements


@dataclass(frozen=True, slots=True)
class DiffusionLossResult:
    """Result of a loss.

    Attributes:
        loss: loss of each row, float32 [B], or its mean over the rows, [].
        metrics: numbers by name; they are reported as `actor/<name>`: means over the terms of a mini-batch, or maxima
            if the name begins with `max_` or ends in `_max`.
        add_loss_metric: whether the loss is reported, as `actor/loss_of_<class name>`.
    """

    loss: Tensor
    metrics: Mapping[str, Any] = field(default_factory=dict)
    add_loss_metric: bool = True


class DiffusionLossFn(ABC):
    """Base class of a policy loss of one recorded step.

    Attributes:
        required_model_output_keys: keys of `model_output` that the loss reads: `log_probs`.
        required_data_keys: keys of `data` that it reads: `old_log_probs`, `advantages`.
    """

    required_model_output_keys: ClassVar[Sequence[str]] = ()
    required_data_keys: ClassVar[Sequence[str]] = ()

    @classmethod
    def make_objective(cls, *args: Any, **kwargs: Any) -> ReferenceLossObjective:
        """The objective of an update with this loss; arguments of `StepObjective`."""
        return ReferenceLossObjective(cls(), *args, **kwargs)

    @abstractmethod
    def __call__(self, *, config: Any, model_output: Mapping[str, Tensor], data: Mapping[str, Tensor]) -> Any:
        """The loss of a micro-batch, a `DiffusionLossResult`.

        Args:
            config: `DiffusionActorConfig`, the settings below `actor_rollout_ref.actor`.
            model_output: `log_probs` of the current policy, float32 [B], with gradients.
            data: `old_log_probs` of the policy to compare with and `advantages`, float32 [B].
        """

    def validate_inputs(self, model_output: Mapping[str, Tensor], data: Mapping[str, Tensor]) -> None:
        """Check what the loss will read; called before it.

        Raises:
            ValueError: something is missing.
        """
        for required, tensors in (
            (self.required_model_output_keys, model_output),
            (self.required_data_keys, data),
        ):
            if missing := [name for name in required if name not in tensors]:
                raise ValueError(f"{type(self).__name__} needs {', '.join(missing)}; there is {', '.join(tensors)}")


def check_keys(loss: type[DiffusionLossFn]) -> None:
    """Refuse a loss that reads what this trainer does not give.

    Raises:
        ValueError: the message lists what there is.
    """
    for attribute, known in (("required_model_output_keys", MODEL_OUTPUT), ("required_data_keys", DATA)):
        if unknown := [name for name in getattr(loss, attribute) if name not in known]:
            raise ValueError(
                f"{loss.__name__}.{attribute}: this trainer does not have {', '.join(unknown)}, only {', '.join(known)}"
            )


class ReferenceLossObjective(UserObjective):
    """An update by a loss of the reference's form."""

    loss: DiffusionLossFn

    @override
    def policy_loss(
        self, part: Batch, place: int, log_ratio: Tensor, mean: Tensor, std: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        old = part[COMPARED]
        model_output = {"log_probs": log_ratio + old}
        data = {"old_log_probs": old, "advantages": part["advantages"]}
        self.loss.validate_inputs(model_output, data)
        result = self.loss(config=self.actor, model_output=model_output, data=data)
        if not isinstance(result, DiffusionLossResult):
            raise TypeError(f"{self._name} returned a {type(result).__name__}, expected a DiffusionLossResult")
        difference = log_ratio.detach()
        measured = {"difference": difference, "clip_fraction": torch.zeros_like(difference)}
        loss = self._of_rows(result.loss, difference)
        metrics = dict(result.metrics) | (
            {f"loss_of_{self._name}": loss.detach().mean()} if result.add_loss_metric else {}
        )
        for name, value in metrics.items():
            number = torch.as_tensor(value, dtype=difference.dtype, device=difference.device).detach().mean()
            measured[METRIC + name] = number.expand_as(difference)
        return loss, measured

    @property
    def _name(self) -> str:
        return type(self.loss).__name__

    def _of_rows(self, loss: Tensor, like: Tensor) -> Tensor:
        if loss.shape == like.shape:
            return loss
        if loss.ndim:
            raise ValueError(f"{self._name} returned a loss {list(loss.shape)}, expected {list(like.shape)} or a mean")
        if self.criterion is not None or self.rollout_is is not None:
            raise ValueError(
                f"{self._name} returned the mean of its rows, and algorithm.rollout_correction weighs each row: return "
                f"the loss of each row, {list(like.shape)}"
            )
        return loss.expand(like.shape)

    @override
    def summarize(self, measured: dict[str, Tensor], count: int) -> dict[str, float]:
        metrics = {
            f"actor/{name.removeprefix(METRIC)}": (values.max() if is_maximum(name) else values.mean()).item()
            for name, values in measured.items()
            if name.startswith(METRIC)
        }
        return {**super().summarize(measured, count), **metrics}
