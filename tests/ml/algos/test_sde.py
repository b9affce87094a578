"""SDE steps against independently written formulas in float64."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_omni.algos import grpo, sde
from verl_omni.algos.sde_settings import SDE_TYPES

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


@pytest.mark.parametrize("kind", SDE_TYPES)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_moments_equal_the_formulas_in_float64(kind: str, data: st.DataObject) -> None:
    s = data.draw(st.one_of(LEVELS, st.just(1.0)))
    s1 = data.draw(st.floats(0.01, 0.98)) * s
    top = data.draw(st.floats(0.5, 0.95))
    a = data.draw(st.floats(0.05, 0.95))
    x = data.draw(st.floats(-3, 3))
    v = data.draw(st.floats(-3, 3))
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


@pytest.mark.parametrize("rounded", [1 - 2**-24, 1 - 2**-23, 1 - 1e-6, 1.0, 1 + 2**-23])
def test_a_first_level_that_a_scheduler_rounds_is_1(rounded: float) -> None:
    """diffusers' and the engine's schedulers give 1 - 2^-24 for a shift of 1.43, and 1 - 2^-23 for one of 1.18.

    diffusers' UniPC begins at 1 - 1e-6.

    sigma / (1 - sigma) of such a level is 16 million: the noise of the step would be 4,096 times too large.
    """
    level = lambda value: torch.full((2,), value)  # noqa: E731
    x, v = (torch.randn(2, 4, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    mean, std = sde.moments(
        "sde", x, v, sigma=level(rounded), sigma_next=level(0.9), sigma_max=level(0.9), noise_level=0.7
    )
    want, spread = zip(
        *(
            reference("sde", *pair, 1.0, 0.9, 0.9, 0.7)
            for pair in zip(*(t.flatten().tolist() for t in (x, v)), strict=True)
        ),
        strict=True,
    )
    torch.testing.assert_close(mean.flatten(), torch.tensor(want), rtol=1e-5, atol=1e-5)
    assert std.flatten().tolist() == pytest.approx([spread[0]] * 2, rel=1e-5)


@given(st.floats(-2, 2), st.floats(-2, 2), st.floats(0.05, 2))
@settings(max_examples=50, deadline=None)
def test_log_prob_is_the_mean_log_density(x: float, mean: float, std: float) -> None:
    want = -((x - mean) ** 2) / (2 * std * std) - math.log(std) - 0.5 * math.log(2 * math.pi)
    t = lambda value: torch.full((3, 2, 4), value)  # noqa: E731
    log_prob = sde.log_prob("sde", t(x), t(mean), torch.full((3, 1, 1), std))
    assert log_prob.shape == (3,)
    assert torch.allclose(log_prob, torch.full((3,), want), rtol=1e-4, atol=1e-4)


def test_half_precision_and_unknown_kinds_are_refused() -> None:
    x = torch.zeros(1, 2)
    level = torch.full((1,), 0.5)
    with pytest.raises(ValueError, match="float32"):
        sde.moments("sde", x.half(), x.half(), sigma=level, sigma_next=level, sigma_max=level, noise_level=0.7)
    with pytest.raises(ValueError, match="Unknown sde_type"):
        sde.moments("ode", x, x, sigma=level, sigma_next=level, sigma_max=level, noise_level=0.7)


@given(LEVELS, st.floats(0.1, 0.9), st.floats(0.1, 1.0), st.floats(-2, 2), st.floats(-2, 2))
@settings(max_examples=60, deadline=None)
def test_the_kl_is_that_of_the_normal_distributions_or_without_the_step_size(
    s: float, part: float, a: float, v: float, base_v: float
) -> None:
    """Against torch's KL in float64, and against Flow-GRPO's definition, which divides by g^2 instead of g^2 (-dt)."""
    s1 = part * s
    level = lambda value: torch.full((1,), value)  # noqa: E731
    sigmas = {"sigma": level(s), "sigma_next": level(s1), "sigma_max": level(0.9)}
    x, velocity, base = (torch.full((1, 4), value) for value in (0.3, v, base_v))
    mean, std = sde.moments("sde", x, velocity, noise_level=a, **sigmas)
    base_mean, _ = sde.moments("sde", x, base, noise_level=a, **sigmas)
    normal = torch.distributions.Normal(mean.double(), std.double())
    base_normal = torch.distributions.Normal(base_mean.double(), std.double())
    exact = torch.distributions.kl_divergence(normal, base_normal).mean().item()
    assert grpo.gaussian_kl(mean, base_mean, std).item() == pytest.approx(exact, rel=1e-4, abs=1e-9)
    g = sde.diffusion(std, sigma=level(s), sigma_next=level(s1))
    assert g.item() == pytest.approx(a * math.sqrt(s / (1 - s)), rel=1e-5)
    theirs = grpo.gaussian_kl(mean, base_mean, g).item()
    assert theirs == pytest.approx(exact * (s - s1), rel=1e-4, abs=1e-9)
