"""Interfaces of a training algorithm: what the trainer makes of scored samples, and the loss of one update."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Literal, Protocol, TypeVar, runtime_checkable

import torch
from omegaconf import DictConfig
from torch import Tensor

from verl_omni.algos import advantages, flow_matching
from verl_omni.algos.groups import rows_with_reward
from verl_omni.utils.registry import load
from verl_omni.workers.actor.policy import Batch, Policy
from verl_omni.workers.algorithms import registry
from verl_omni.workers.algorithms.estimators import ESTIMATORS
from verl_omni.workers.algorithms.registered import ALGORITHMS
from verl_omni.workers.config import DiffusionActorConfig, DiffusionLossConfig

Loss = TypeVar("Loss", bound=DiffusionLossConfig)
# Log-ratio and advantages of a step, float32 [B] each, and the settings of `diffusion_loss` -> loss [B].
PolicyLoss = Callable[[Tensor, Tensor, Any], Tensor]


class Samples(Protocol):
    """Scored samples of one step, in the order of their rows."""

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """Recorded tensors by name, [B, ...]."""

    @property
    def scores(self) -> Tensor:
        """Rewards, float32 [B]; NaN: the sample could not be scored."""

    @property
    def groups(self) -> Sequence[str]:
        """The prompt that each sample belongs to."""


class Objective(Protocol):
    """The loss of one update, over a batch whose tensors all have one entry a row.

    Attributes:
        samples_per_row: samples that one row holds.
    """

    samples_per_row: int

    def prepare(self, batch: Batch) -> Batch:
        """Add the random draws that all terms of a mini-batch share."""

    def term_count(self, batch: Batch) -> int:
        """Number of terms whose mean is a row's loss; each needs one forward pass."""

    def rows_with_gradient(self, batch: Batch) -> Tensor:
        """Mask of the rows that have a gradient, bool [B]."""

    def term(self, part: Batch, place: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Term `place` of each row's loss, [B], with its gradient; and measurements, [B] each."""

    def summarize(self, measured: dict[str, Tensor], count: int) -> dict[str, float]:
        """Metrics of an optimizer step, before it is taken, the same on all ranks; names of maxima end in `_max`.

        Args:
            measured: the measurements of all terms of all ranks, concatenated; without rows that have no gradient,
                unless no row has one.
            count: number of terms of the mini-batch of all ranks, including terms of rows that have no gradient.

        Raises:
            EngineMismatch: engine and trainer disagree about recorded steps; the optimizer step must not be taken.
        """

    def finish(self) -> None:
        """Finish the update, after its last optimizer step."""


@runtime_checkable
class ComparesWithStart(Objective, Protocol):
    """An objective that compares with the policy before the first optimizer step of the update.

    Attributes:
        recomputed: rows whose terms the trainer evaluates before that step: `later` (rows of later optimizer steps),
            `all`, or `none`. In the first optimizer step, the policy is still the one to compare with.
    """

    @property
    def recomputed(self) -> Literal["none", "later", "all"]: ...

    def start_values(self, part: Batch, place: int) -> dict[str, Tensor]:
        """What term `place` needs of the policy before the update, [B, ...] each; `term` gets them as [B, terms, ...].

        Called without gradients.
        """


class TrainingAlgorithm(ABC, Generic[Loss]):
    """A training algorithm.

    Attributes:
        settings: type of `actor_rollout_ref.actor.diffusion_loss`.
    """

    settings: type[Loss]

    def rows_per_prompt(self, samples: int) -> int:
        """Rows of a training batch that the samples of one prompt make; one a sample unless overridden."""
        return samples

    @abstractmethod
    def training_batch(self, samples: Samples, loss: Loss, config: DictConfig, seed: int) -> Batch:
        """The tensors of one update, as `objective` takes them.

        Args:
            config: all settings of the trainer.
            seed: seed of the random draws of this update.

        Raises:
            ValueError: a reward is infinite.
        """

    def compares_with_base(self, loss: Loss, actor: DiffusionActorConfig) -> bool:
        """Whether updates run the base model (`Policy.as_base`): with all weights trained, it is loaded in addition."""
        return actor.use_kl_loss

    def update_arguments(self, config: DictConfig, step: int) -> dict[str, Any]:
        """Arguments of `objective` for the update of training step `step`, from 1; plain values."""
        return {}

    def metrics(self, found: Mapping[str, float]) -> dict[str, float]:
        """Metrics of a training step from means over its mini-batches and ranks."""
        return dict(found)

    def for_older_samples(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments for samples of earlier weights than those that the update starts from."""
        return arguments

    def with_loss(self, loss: PolicyLoss) -> TrainingAlgorithm[Loss]:
        """The algorithm with another policy loss.

        Raises:
            TypeError: it has none, because it does not train on recorded steps.
        """
        raise TypeError(f"{type(self).__name__} does not train on recorded steps, so it has no policy loss")

    @abstractmethod
    def objective(
        self, policy: Policy, loss: Loss, actor: DiffusionActorConfig, arguments: Mapping[str, Any]
    ) -> Objective:
        """The objective of one update.

        Args:
            arguments: what `update_arguments` returned in the trainer.
        """


def training_algorithm(name: str) -> TrainingAlgorithm[Any]:
    """Import the implementation of a registered algorithm.

    Raises:
        ValueError: there is none of this name; the message lists the names.
    """
    registry.check_name(name)
    entry = ALGORITHMS[name]
    algorithm: TrainingAlgorithm[Any] = load(entry.implementation)()
    return algorithm if entry.loss is None else algorithm.with_loss(load(entry.loss))


def estimate_advantages(samples: Samples, config: DictConfig) -> Tensor:
    """Advantages float32 [B], by `algorithm.adv_estimator`; 0 for samples without a reward, which it does not see.

    Raises:
        ValueError: a reward is infinite, or a user's estimator returns no finite advantage for each sample.
    """
    name = config.algorithm.adv_estimator
    rows = rows_with_reward(samples.scores)
    scores = samples.scores[rows]
    values: Tensor = load(ESTIMATORS[name])(scores, [samples.groups[row] for row in rows], config.algorithm)
    if not isinstance(values, Tensor):
        raise ValueError(f"algorithm.adv_estimator: {name} returned a {type(values).__name__}, expected a tensor [B]")
    if values.shape != scores.shape or not values.isfinite().all():
        raise ValueError(
            f"algorithm.adv_estimator: {name} returned {list(values.shape)} advantages for {len(scores)} samples, or "
            "one that is not finite"
        )
    return values.new_zeros(len(samples.scores)).index_copy(0, rows, values)


def group_relative(rewards: Tensor, groups: Sequence[str], algorithm: DictConfig) -> Tensor:
    """Advantages [B], normalised as `algorithm.norm_adv_by_std_in_grpo` and `algorithm.global_std` say."""
    return advantages.group_advantages(
        rewards,
        groups,
        normalize=algorithm.norm_adv_by_std_in_grpo,
        global_std=algorithm.global_std,
    )


def draw_seeds(rows: int, seed: int) -> Tensor:
    """A seed for each row, int64 [rows], of the noise that it is trained on."""
    return torch.randint(2**62, (rows,), generator=torch.Generator().manual_seed(seed))


def with_draws(batch: Batch, count: int, shape: tuple[int, ...]) -> Batch:
    """The batch with `times` [B, count] and `noise` [B, count, *shape] drawn from its `draw_seeds`, on its device."""
    times, noise = flow_matching.draws(batch["draw_seeds"], count, shape)
    device = batch["draw_seeds"].device
    return {**batch, "times": times.to(device), "noise": noise.to(device)}
