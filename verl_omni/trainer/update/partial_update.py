"""`PartialUpdate`: the update of one step, whose samples come in parts while others are generated."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from verl_omni.algos import advantages
from verl_omni.samples import ScoredSamples, TrainingBatch
from verl_omni.trainer.settings import step_parts
from verl_omni.workers.algorithms.base import TrainingAlgorithm

Metrics = dict[str, list[float]]
ROUNDING = 1e-5  # relative; of advantages in float32


class PartialUpdate:
    """Has the trainer accumulate gradients of parts of a step, and take the optimizer step with the last one.

    The standard deviation of the batch, by which advantages may be divided, is known with the last part. Until then
    they are divided by the first part's, and then all gradients are multiplied by the quotient.

    Args:
        train: has the trainer's rank train on rows, with arguments of `DiffusionActor.update_part`; returns metrics.
        loss: settings of the algorithm's loss.
        arguments: as of a `TrainingBatch`.
        rows: samples of all parts together.
    """

    def __init__(
        self,
        config: DictConfig,
        train: Callable[[TrainingBatch, Mapping[str, Any]], Metrics],
        algorithm: TrainingAlgorithm[Any],
        loss: Any,
        arguments: dict[str, Any],
        *,
        rows: int,
        seed: int,
    ) -> None:
        self._began = time.perf_counter()
        self._train = train
        self._algorithm = algorithm
        self._loss = loss
        self._arguments = arguments
        self._rows = rows
        self._seed = seed
        self._is_scaled = step_parts.advantages_are_scaled(config)
        self._unscaled = OmegaConf.merge(config, {"algorithm": {"norm_adv_by_std_in_grpo": False}})
        self._config = self._unscaled if self._is_scaled else config
        self._divisor = 1.0
        self._sent: list[Tensor] = []

    def add(self, samples: ScoredSamples) -> None:
        """Accumulate the gradients of the next part, which is not the last one."""
        rows = self._algorithm.training_batch(samples, self._loss, self._config, self._seed)
        if self._is_scaled and not self._sent:
            self._divisor = advantages.batch_divisor(samples.scores)
        sent = rows["advantages"] / self._divisor
        self._update(TrainingBatch({**rows, "advantages": sent}, samples.stored, self._arguments), is_last=False)
        self._sent.append(sent)

    def finish(self, batch: TrainingBatch, samples: ScoredSamples) -> Metrics | None:
        """Train on the rest of a batch, and take the optimizer step.

        Args:
            batch: all rows. samples: those that it is made of.

        Returns:
            The metrics of the ranks, and in `timing_s/update` how long parts have been trained on since the last one
            was generated; None if the rows that were sent differ from the batch's: the caller trains on the whole
            batch, and the accumulated gradients are dropped.
        """
        late = max(0.0, time.perf_counter() - self._began - samples.seconds)
        scores = samples.scores
        scale = self._divisor / advantages.batch_divisor(scores) if self._is_scaled else 1.0
        sent = torch.cat(self._sent)
        wanted = batch.rows["advantages"]
        if not self._agree(sent, wanted, scale):
            return None
        remaining = {name: tensor[len(sent) :] for name, tensor in batch.rows.items()}
        remaining["advantages"] = remaining["advantages"] / scale
        metrics = self._update(TrainingBatch(remaining, batch.stored, batch.arguments), is_last=True, scale=scale)
        return {**metrics, "timing_s/update": [late]}

    def _agree(self, sent: Tensor, wanted: Tensor, scale: float) -> bool:
        known = wanted[: len(sent)]
        if not self._is_scaled:
            return torch.equal(sent, known)
        # Advantages that the loss clips are not proportional to the scale.
        largest = max(float(values.abs().max()) for values in (sent, wanted, wanted / scale))
        return largest <= self._loss.adv_clip_max and torch.allclose(sent * scale, known, rtol=ROUNDING, atol=0)

    def _update(self, batch: TrainingBatch, *, is_last: bool, scale: float = 1.0) -> Metrics:
        part = {"rows": self._rows, "is_first": not self._sent, "is_last": is_last, "scale": scale}
        return self._train(batch, part)
