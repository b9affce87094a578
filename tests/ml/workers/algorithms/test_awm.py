"""AWM on a toy model in float64: the loss against its formula, and the first gradient."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from verl_omni.algos import flow_matching
from verl_omni.workers.algorithms.awm import AWMLossConfig, AWMObjective


class ToyPolicy:
    """A linear velocity: weight * x + bias * (1 - t), with a base model of weight and bias 0.2."""

    def __init__(self, weight: float = 0.3, bias: float = -0.1) -> None:
        self.weight = torch.tensor(weight, dtype=torch.float64, requires_grad=True)
        self.bias = torch.full((2,), bias, dtype=torch.float64, requires_grad=True)
        self.is_base = False

    def velocity_at(self, part: Any, x: Tensor, time: Tensor) -> Tensor:
        if self.is_base:
            return 0.2 * x + 0.2 * (1 - time).view(-1, 1)
        return self.weight * x + self.bias * (1 - time).view(-1, 1)

    @contextmanager
    def as_base(self) -> Iterator[None]:
        self.is_base = True
        yield
        self.is_base = False


def make(policy: ToyPolicy, **settings: Any) -> AWMObjective:
    return AWMObjective(policy, AWMLossConfig(**settings))  # type: ignore[arg-type]


def rows(count: int = 5, advantages: Any = None) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(7)
    return {
        "clean_latents": torch.randn(count, 2, generator=generator, dtype=torch.float64),
        "advantages": torch.tensor(advantages or [2.0, -0.5, 0.0, 0.7, -3.0], dtype=torch.float64),
        "draw_seeds": torch.arange(count) + 11,
    }


def prepared(objective: AWMObjective, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return {
        name: value.double() if value.is_floating_point() else value for name, value in objective.prepare(batch).items()
    }


def likelihood(weight: float, bias: float, x0: Any, noise: Any, t: float) -> float:
    """-mean((v - (e - x0))^2), element by element."""
    errors = [weight * ((1 - t) * x + t * e) + bias * (1 - t) - (e - x) for x, e in zip(x0, noise, strict=True)]
    return -sum(error**2 for error in errors) / len(errors)


@pytest.mark.parametrize("coefficient", [0.0, 0.25])
def test_the_loss_against_its_formula(coefficient: float) -> None:
    batch = rows()
    old = make(ToyPolicy(0.3, -0.1), draws=2)
    start = [old.start_values(prepared(old, batch), place)["old_likelihood"].detach() for place in range(2)]
    policy = ToyPolicy(0.9, 0.4)
    objective = make(policy, draws=2, clip_ratio=0.5, adv_clip_max=1.0, ref_kl_coef=coefficient)
    objective.at_start = False
    part = {**prepared(objective, batch), "old_likelihood": torch.stack(start, dim=1)}
    limited = 0
    for place in range(2):
        loss, measured = objective.term(part, place)
        for row in range(5):
            x0 = part["clean_latents"][row].tolist()
            noise = part["noise"][row, place].tolist()
            t = part["times"][row, place].item()
            new = likelihood(0.9, 0.4, x0, noise, t)
            ratio = math.exp(new - likelihood(0.3, -0.1, x0, noise, t))
            advantage = max(-1.0, min(1.0, part["advantages"][row].item()))
            clipped = max(0.5, min(1.5, ratio))
            limited += clipped != ratio
            x = [(1 - t) * a + t * e for a, e in zip(x0, noise, strict=True)]
            drift = sum((0.7 * value + 0.2 * (1 - t)) ** 2 for value in x) / 2
            expected = max(-advantage * ratio, -advantage * clipped) + coefficient * drift
            assert loss[row].item() == pytest.approx(expected, abs=1e-12)
            assert measured["matching_error"][row].item() == pytest.approx(-new, abs=1e-12)
    assert 0 < limited < 10


def test_the_first_gradient_is_that_of_flow_matching_weighted_by_the_advantage() -> None:
    batch = rows()
    policy = ToyPolicy()
    objective = make(policy, draws=1)
    part = prepared(objective, batch)
    objective.term(part, 0)[0].sum().backward()
    second = ToyPolicy()
    x, target = flow_matching.add_noise(part["clean_latents"], part["noise"][:, 0], part["times"][:, 0])
    error = flow_matching.error(second.velocity_at(part, x, part["times"][:, 0]), target)
    (part["advantages"].clamp(-1, 1) * error).sum().backward()
    assert policy.weight.grad is not None and second.weight.grad is not None
    assert policy.weight.grad.item() == pytest.approx(second.weight.grad.item(), rel=1e-12)
    assert policy.bias.grad.tolist() == pytest.approx(second.bias.grad.tolist(), rel=1e-12)  # type: ignore[union-attr]


def test_a_row_without_an_advantage_is_trained_only_with_a_base_model() -> None:
    part = rows()
    assert make(ToyPolicy()).rows_with_gradient(part).tolist() == [True, True, False, True, True]
    assert make(ToyPolicy(), ref_kl_coef=0.1).rows_with_gradient(part).all()


@pytest.mark.parametrize("settings", [{"draws": 0}, {"clip_ratio": 0.0}, {"adv_clip_max": -1.0}, {"ref_kl_coef": -0.1}])
def test_numbers_out_of_range_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        AWMLossConfig(**settings)
