"""An update whose rows arrive in parts is the update with all rows."""

from pathlib import Path
from typing import Any

import pytest
import torch

from ml.workers.actor.test_actor import batch, make
from ml.workers.tiny_actor import SAMPLER, relative_difference, smooth_steps, weights_of
from verl_omni.algos.agreement import LogProbMismatch

pytestmark = pytest.mark.slow

ADVANTAGES = torch.tensor([1.0, 0.0, -1.0, 0.5])


def made(folder: Path, micro: int | None) -> tuple[Any, dict[str, torch.Tensor]]:
    actor = make(folder, ppo_micro_batch_size_per_gpu=micro, optim=smooth_steps(lr=0.1))
    return actor, {**batch(actor), "advantages": ADVANTAGES}


def in_parts(
    actor: Any, rows: dict[str, torch.Tensor], sizes: tuple[int, ...], *, scale: float = 1.0, **request: Any
) -> dict[str, float] | None:
    metrics = None
    start = 0
    for number, size in enumerate(sizes):
        part = {name: tensor[start : start + size] for name, tensor in rows.items()}
        is_last = number == len(sizes) - 1
        metrics = actor.update_part(
            part, rows=len(ADVANTAGES), is_first=number == 0, is_last=is_last, scale=scale, **SAMPLER, **request
        )
        assert (metrics is None) is not is_last
        start += size
    return metrics


@pytest.mark.parametrize("sizes", [(1, 3), (2, 2), (1, 1, 1, 1)])
@pytest.mark.parametrize("micro", [1, 2, 3])
def test_parts_change_no_bit_of_an_update_in_micro_batches(model_folder: Path, micro: int, sizes: Any) -> None:
    """Micro-batches contain rows of several parts, and none of a row that has no gradient."""
    at_once, rows = made(model_folder, micro)
    expected = at_once.update(rows, **SAMPLER)
    actor, rows = made(model_folder, micro)
    assert in_parts(actor, rows, sizes) == expected
    weights = weights_of(at_once)
    assert all(torch.equal(weights[name], tensor) for name, tensor in weights_of(actor).items())


def test_without_micro_batches_each_part_is_one(model_folder: Path) -> None:
    at_once, rows = made(model_folder, None)
    before = weights_of(at_once)
    expected = at_once.update(rows, **SAMPLER)
    actor, rows = made(model_folder, None)
    metrics = in_parts(actor, rows, (2, 2))
    assert metrics is not None and metrics["actor/grad_norm"] == pytest.approx(expected["actor/grad_norm"], rel=1e-5)
    assert relative_difference(before, weights_of(at_once), weights_of(actor)) < 1e-4


def test_rows_without_any_gradient_are_measured(model_folder: Path) -> None:
    measured = []
    for sizes in ((4,), (2, 2)):
        actor, rows = made(model_folder, 1)
        rows["advantages"] = torch.zeros(4)
        metrics = in_parts(actor, rows, sizes)
        assert metrics is not None and metrics["actor/grad_norm"] == 0
        measured.append(metrics)
    assert measured[0] == measured[1] and measured[0]["actor/ratio_max"] == 1


def test_the_last_part_scales_gradients_and_loss(model_folder: Path) -> None:
    """Advantages that are all half as large, and gradients twice as large afterwards: both are exact in floats."""
    at_once, rows = made(model_folder, 1)
    expected = at_once.update(rows, **SAMPLER)
    actor, rows = made(model_folder, 1)
    rows["advantages"] = ADVANTAGES / 2
    assert in_parts(actor, rows, (2, 2), scale=2.0) == expected
    weights = weights_of(at_once)
    assert all(torch.equal(weights[name], tensor) for name, tensor in weights_of(actor).items())


@pytest.mark.parametrize("then", ["update", "parts"])
def test_parts_of_an_update_that_does_not_end_leave_no_gradient(model_folder: Path, then: str) -> None:
    expected = None
    for fails in (False, True):
        actor, rows = made(model_folder, 1)
        if fails:
            with pytest.raises(ValueError, match="no sample"):
                fail_after_a_part(actor, rows)
        metrics = actor.update(rows, **SAMPLER) if then == "update" else in_parts(actor, rows, (3, 1))
        weights = weights_of(actor)
        if expected is None:
            expected = metrics, weights
    assert expected is not None and metrics == expected[0]
    assert all(torch.equal(expected[1][name], tensor) for name, tensor in weights.items())


def fail_after_a_part(actor: Any, rows: dict[str, torch.Tensor]) -> None:
    part = {name: tensor[:2] for name, tensor in rows.items()}
    actor.update_part(part, rows=4, is_first=True, is_last=False, **SAMPLER)
    assert any(weight.grad is not None and weight.grad.any() for weight in actor.trained)
    raise ValueError("no sample")


def test_disagreement_with_the_engine_in_any_part_updates_nothing(model_folder: Path) -> None:
    actor, rows = made(model_folder, 1)
    before = weights_of(actor)
    rows["rollout_log_probs"] = rows["rollout_log_probs"] + torch.tensor([[0.5], [0.0], [0.0], [0.0]])
    with pytest.raises(LogProbMismatch):
        in_parts(actor, rows, (2, 2), tolerance=1e-3)
    assert all(torch.equal(before[name], tensor) for name, tensor in weights_of(actor).items())
    assert all(weight.grad is None for weight in actor.trained)
