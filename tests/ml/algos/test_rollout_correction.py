"""Importance weights of the rollout correction: against float64, and against verl."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights, compute_rollout_rejection_mask

from verl_omni.algos import rejection_settings, rollout_correction

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
    for level, weights in (("sequence", of_samples), ("token", of_first)):
        verl, _ = compute_rollout_correction_weights(trainer - engine, torch.ones_like(trainer), level, threshold)
        assert torch.allclose(verl[:, 0], weights)


def test_a_weight_beyond_the_range_of_float32_is_the_threshold_and_has_no_gradient() -> None:
    trainer = torch.tensor([[90.0, 90.0]], requires_grad=True)
    weights = rollout_correction.weights(trainer, torch.zeros(1, 2), threshold=2.0)
    assert weights.tolist() == [2.0] and not weights.requires_grad


@given(DIFFERENCES, st.sampled_from(rejection_settings.OPTIONS), st.sampled_from([0.4, 1.5, 2.0]), st.booleans())
@settings(max_examples=120, deadline=None)
def test_what_is_rejected_is_what_verl_rejects(
    differences: list[list[float]], option: str, upper: float, both: bool
) -> None:
    threshold: object = f"0.3_{upper}" if both and option.endswith("k1") else max(upper, 1.0)
    trainer = torch.tensor(differences)
    criterion = rejection_settings.parse(option, threshold)
    verl, _ = compute_rollout_rejection_mask(trainer, torch.ones_like(trainer), option, threshold)
    assert torch.equal(rollout_correction.kept(trainer, torch.zeros_like(trainer), criterion), verl.bool())


@pytest.mark.parametrize(
    ("option", "threshold", "message"),
    [
        ("seq_mean_k1", "2.0_0.5", "two positive numbers"),
        ("seq_mean_k1", None, "two positive numbers"),
        ("seq_mean_k1", 0.5, "two positive numbers"),  # whose reciprocal is above it: nothing would be kept
        ("token_k2", "0.5_2.0", "a positive number"),
        ("token_k2", 0, "a positive number"),
        ("seq_max_k1", 2.0, "is not one of token_k1"),
    ],
)
def test_a_threshold_that_an_option_does_not_take_is_refused(option: str, threshold: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rejection_settings.parse(option, threshold)
