"""Forward and backward pass of one micro-batch of the real objective, on fake tensors."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from omegaconf import DictConfig
from torch import Tensor, nn
from typing_extensions import override
from verl.utils.config import omega_conf_to_dataclass

from verl_omni.pipelines.registry import training_adapter
from verl_omni.trainer.memory_estimate.model_shapes import ModelShapes, tensor_bytes
from verl_omni.trainer.memory_estimate.peak_tracker import PeakTracker
from verl_omni.trainer.memory_estimate.sample_tensors import fake_rows
from verl_omni.trainer.memory_estimate.sharding import Sharding, shard_bytes
from verl_omni.workers.actor.policy import Batch, Policy
from verl_omni.workers.algorithms.base import ComparesWithStart, Objective, training_algorithm


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Bytes of one micro-batch, and the number of micro-batches.

    Attributes:
        inputs: bytes of its tensors.
        activations: peak in addition to the inputs, the weights, and the gradients of all passes.
        passes: number of backward passes of an optimizer step on one rank.
        calls: number of forward passes of the model for each backward pass.
        evaluations: number of passes without gradients before the first optimizer step of an update, on one rank.
        start_values: bytes of the results of these passes, in CPU memory, for all rows of a rank.
    """

    inputs: int
    activations: int
    passes: int
    calls: int
    evaluations: int
    start_values: int


def run(
    config: DictConfig,
    model: ModelShapes,
    module: nn.Module,
    base: nn.Module | None,
    sample: Mapping[str, Tensor],
    sharding: Sharding,
) -> MicroBatch:
    """Run one term of the objective on a micro-batch.

    Args:
        module: the trained transformer on the meta device, in the dtypes that it computes in; it becomes fake.
        base: the base model, in the same form, if it is kept in addition; otherwise None.
        sample: tensors of one sample.
    """
    settings = config.actor_rollout_ref
    loss = omega_conf_to_dataclass(settings.actor.diffusion_loss)
    actor = omega_conf_to_dataclass(settings.actor)
    algorithm = training_algorithm(loss.loss_mode)
    modules = [module] if base is None else [module, base]
    for model_part in modules:
        model.as_fake(model_part).eval()
    tracker = PeakTracker()
    policy = _ShardedPolicy(
        module,
        training_adapter(settings.model.architecture),
        dtype=sharding.precision.compute,
        lora=settings.model.lora_rank > 0,
        keeps_old="old" in settings.model.policy_state_adapters,
        base=base,
    )
    # Ranks that share a sequence divide what this counts, except for this copy.
    trained = [*policy.trained.values()]
    policy.tracker = tracker
    # A rank keeps its shards of trained weights in float32.
    kept = [torch.empty_like(p, dtype=torch.float32, device="meta") for p in model.transformers * trained]
    policy.copied = sharding.sequence * shard_bytes(kept, sharding.shards)
    objective = algorithm.objective(policy, loss, actor, algorithm.update_arguments(config, 1))
    rows = max(1, actor.ppo_mini_batch_size * algorithm.rows_per_prompt(settings.rollout.n) // sharding.groups)
    samples = actor.ppo_micro_batch_size_per_gpu
    micro = min(rows, max(1, samples // objective.samples_per_row)) if samples else rows
    part = objective.prepare(_batch(config, model, algorithm, loss, sample, micro))
    passes = math.ceil(rows / micro) * objective.term_count(part)
    recomputed = _recomputed_mini_batches(config, objective)
    start = _start_values(part, objective) if recomputed else {}
    part |= start
    batches = math.ceil(config.data.train_batch_size / actor.ppo_mini_batch_size) * rows / micro
    calls = 0

    def count(*_: Any) -> None:
        nonlocal calls
        calls += 1

    for model_part in modules:
        model_part.register_forward_pre_hook(count)
    appears = passes == 1 and not sharding.wrapped
    # The accumulated gradients are counted elsewhere, and here only each new one, until it is added.
    for parameter in () if appears else trained:
        parameter.register_post_accumulate_grad_hook(_drop_gradient)
    counted = [tensor for model_part in modules for tensor in (*model_part.parameters(), *model_part.buffers())]
    old = () if policy.old is None else policy.old.values.values()
    known = tracker.add([*counted, *part.values(), *old])
    with tracker:
        objective.term(part, 0)[0].sum().backward()
    if appears:  # in the only pass gradients appear while activations go, but they are counted as if always there
        known += tensor_bytes(trained)
    return MicroBatch(
        tensor_bytes(part.values()),
        max(0, tracker.peak - known),
        passes,
        calls,
        passes * recomputed,
        math.ceil(batches * tensor_bytes(start.values())),
    )


def _start_values(part: Batch, objective: Objective) -> Batch:
    """Each term's values from the policy before the update, which the actor adds to every micro-batch."""
    assert isinstance(objective, ComparesWithStart)
    terms = objective.term_count(part)
    with torch.no_grad():
        values = objective.start_values(part, 0)
    return {name: value.unsqueeze(1).repeat(1, terms, *[1] * (value.ndim - 1)) for name, value in values.items()}


def _recomputed_mini_batches(config: DictConfig, objective: Objective) -> int:
    """Mini-batches whose rows the actor evaluates before the first optimizer step; each epoch has the same rows."""
    if not isinstance(objective, ComparesWithStart):
        return 0
    actor = config.actor_rollout_ref.actor
    every = math.ceil(config.data.train_batch_size / actor.ppo_mini_batch_size)
    later = every - 1 if actor.ppo_epochs == 1 else every
    return {"none": 0, "later": later, "all": every}[objective.recomputed]


class _ShardedPolicy(Policy):
    """A policy whose copy of the trained weights, while it runs as the old one, has the size of a rank's shards.

    The module has unsharded weights in the dtype that layers compute in.
    """

    tracker: PeakTracker
    copied: int

    @override
    @contextmanager
    def as_old(self) -> Iterator[None]:
        copy = torch.empty(self.copied, dtype=torch.uint8, device="meta")
        self.tracker.add([copy])
        with torch.no_grad():
            yield


def _drop_gradient(parameter: Tensor) -> None:
    parameter.grad = None


def _batch(
    config: DictConfig, model: ModelShapes, algorithm: Any, loss: Any, sample: Mapping[str, Tensor], rows: int
) -> dict[str, Tensor]:
    """A training batch with `rows` rows, none of which has an advantage of 0."""
    n = config.actor_rollout_ref.rollout.n
    prompts = math.ceil(rows / algorithm.rows_per_prompt(n))
    samples = SimpleNamespace(
        tensors=fake_rows(model, sample, prompts * n),
        scores=torch.arange(n, dtype=torch.float32).repeat(prompts) + 0.5,
        groups=[str(prompt) for prompt in range(prompts) for _ in range(n)],
    )
    batch = algorithm.training_batch(samples, loss, config, 0)
    return {name: tensor[:rows].clone() for name, tensor in batch.items()}
