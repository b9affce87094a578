"""Importance weights of the rollout correction: against float64, and against verl."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights

from verl_omni.algos import rollout_correction

DIFFERENCES = st.lists(st.lists(st.floats(-3, 3), min_size=3, max_size=3), min_size=1, max_size=4)


@given(DIFFERENCES, st.floats(0.5, 5))
@settings(max_examples=60, deadline=None)
def test_weights_against_float64_and_verl(differences: list[list[float]], threshold: float) -> None:
    trainer = torch.tensor(differences)
    engine = torch.full_like(trainer, -0.25)
    of_samples = rollout_correction.weights(trainer, engine, threshold=threshold)
    want = [min(math.exp(math.fsum(row) + 3 * 0.25), threshold) for row in differences]
    assert of_samples.tolist() == pytest.approx(want, rel=1e-5)
    of_first = rollout_correction.weights(trainer[:, :1], engine[:, :1], threshold=threshold)
    assert of_first.tolist() == pytest.approx(
        [min(math.exp(row[0] + 0.25), threshold) for row in differences], rel=1e-5
    )
    for level, own in (("sequence", of_samples), ("token", of_first)):
        verl, _ = compute_rollout_correction_weights(trainer - engine, torch.ones_like(trainer), level, threshold)
        assert torch.allclose(verl[:, 0], own)


def test_a_weight_beyond_the_range_of_float32_is_the_threshold_and_has_no_gradient() -> None:
    trainer = torch.tensor([[90.0, 90.0]], requires_grad=True)
    found = rollout_correction.weights(trainer, torch.zeros(1, 2), threshold=2.0)
    assert found.tolist() == [2.0] and not found.requires_grad
