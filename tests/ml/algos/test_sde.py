"""SDE steps against formulas written out apart, in float64."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_omni.algos import sde

LEVELS = st.floats(0.05, 0.95)


def reference(kind: str, x: float, v: float, s: float, s1: float, top: float, a: float) -> tuple[float, float]:
    """Plain float64 arithmetic of C.2 of the contract."""
    dt = s1 - s
    if kind == "sde":
        g = a * math.sqrt(s / (1 - (top if s >= 1 else s)))
        return x * (1 + g * g * dt / (2 * s)) + v * (1 + g * g * (1 - s) / (2 * s)) * dt, g * math.sqrt(-dt)
    if kind == "cps":
        std = s1 * math.sin(a * math.pi / 2)
        return (x - s * v) * (1 - s1) + (x + v * (1 - s)) * math.sqrt(max(s1 * s1 - std * std, 0)), std
    score = -(x - (x - s * v) * (1 - s)) / (s * s)
    return x + dt * v - 0.5 * a * a * score * dt, a * math.sqrt(-dt)


@pytest.mark.parametrize("kind", sde.SDE_TYPES)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_moments_are_those_of_the_formulas(kind: str, data: st.DataObject) -> None:
    s = data.draw(st.one_of(LEVELS, st.just(1.0)))
    s1 = data.draw(st.floats(0.01, 0.98)) * s
    top, a = data.draw(st.floats(0.5, 0.95)), data.draw(st.floats(0.05, 0.95))
    x, v = data.draw(st.floats(-3, 3)), data.draw(st.floats(-3, 3))
    tensor = lambda value: torch.full((2, 1, 2, 2), value)  # noqa: E731
    level = lambda value: torch.full((2,), value)  # noqa: E731
    mean, std = sde.moments(
        kind, tensor(x), tensor(v), sigma=level(s), sigma_next=level(s1), sigma_max=level(top), noise_level=a
    )
    want_mean, want_std = reference(kind, x, v, s, s1, top, a)
    scale = max(1.0, abs(want_mean))
    assert mean.shape == (2, 1, 2, 2)
    assert torch.allclose(mean, torch.full_like(mean, want_mean), atol=2e-5 * scale, rtol=2e-4)
    assert torch.allclose(std.flatten(), torch.full((2,), want_std), atol=1e-6, rtol=2e-4)


@given(st.floats(-2, 2), st.floats(-2, 2), st.floats(0.05, 2))
@settings(max_examples=50, deadline=None)
def test_log_prob_is_the_mean_log_density(x: float, mean: float, std: float) -> None:
    want = -((x - mean) ** 2) / (2 * std * std) - math.log(std) - 0.5 * math.log(2 * math.pi)
    t = lambda value: torch.full((3, 2, 4), value)  # noqa: E731
    found = sde.log_prob("sde", t(x), t(mean), torch.full((3, 1, 1), std))
    assert found.shape == (3,)
    assert torch.allclose(found, torch.full((3,), want), rtol=1e-4, atol=1e-4)


def test_log_prob_has_the_right_gradient_sign() -> None:
    mean = torch.zeros(1, 4, requires_grad=True)
    sde.log_prob("sde", torch.ones(1, 4), mean, torch.ones(1, 1)).sum().backward()
    assert mean.grad is not None and bool((mean.grad > 0).all())  # moving towards the sample makes it likelier


def test_half_precision_and_unknown_kinds_are_refused() -> None:
    x, level = torch.zeros(1, 2), torch.full((1,), 0.5)
    with pytest.raises(ValueError, match="float32"):
        sde.moments("sde", x.half(), x.half(), sigma=level, sigma_next=level, sigma_max=level, noise_level=0.7)
    with pytest.raises(ValueError, match="Unknown sde_type"):
        sde.moments("ode", x, x, sigma=level, sigma_next=level, sigma_max=level, noise_level=0.7)
