"""Forward process of flow matching: times, noise, velocity."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_omni.algos import flow_matching


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=5, unique=True), st.integers(1, 6))
@settings(max_examples=40, deadline=None)
def test_draws_depend_on_the_seed_and_not_on_the_batch(seeds: list[int], count: int) -> None:
    times, noise = flow_matching.draws(torch.tensor(seeds), count, (2, 3))
    assert times.shape == (len(seeds), count) and noise.shape == (len(seeds), count, 2, 3)
    for row, seed in enumerate(seeds):
        alone = flow_matching.draws(torch.tensor([seed]), count, (2, 3))
        assert torch.equal(alone[0][0], times[row]) and torch.equal(alone[1][0], noise[row])
    assert len({row.flatten()[0].item() for row in noise}) == len(seeds)


def test_times_are_stratified_over_the_unit_interval() -> None:
    times, noise = flow_matching.draws(torch.arange(2000), 4, (5,))
    assert torch.equal((times * 4).floor(), torch.arange(4.0).expand(2000, 4))
    within = times * 4 - torch.arange(4.0)
    assert within.mean().item() == pytest.approx(0.5, abs=0.02)
    assert within.var().item() == pytest.approx(1 / 12, abs=0.005)
    assert noise.mean().item() == pytest.approx(0, abs=0.02) and noise.std().item() == pytest.approx(1, abs=0.02)


def test_the_velocity_connects_clean_latent_and_noise() -> None:
    generator = torch.Generator().manual_seed(0)
    clean = torch.randn(3, 2, 4, generator=generator)
    noise = torch.randn(3, 2, 4, generator=generator)
    time = torch.tensor([0.0, 0.3, 0.9])
    x, v = flow_matching.add_noise(clean, noise, time)
    t = time.view(3, 1, 1)
    assert torch.allclose(x - t * v, clean, atol=1e-6)
    assert torch.allclose(x + (1 - t) * v, noise, atol=1e-6)
    assert flow_matching.error(v, v - 3.0).tolist() == pytest.approx([9.0] * 3, rel=1e-5)
