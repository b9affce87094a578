"""Agreement of velocities: a constant number of projections finds an engine whose velocity is wrong by 1%."""

import pytest
import torch
from torch import Tensor

from verl_omni.algos import agreement

# Latents of Stable Diffusion 3 at 512 and 1024 pixels, packed ones of Qwen-Image at 1024, Wan's of 33 frames in 480p,
# and a tiny one.
SHAPES = [(16, 64, 64), (16, 128, 128), (4096, 64), (16, 9, 60, 104), (1, 3, 5)]
TOLERANCE = agreement.VELOCITY_TOLERANCES[torch.float32]


def velocities(*shape: int, rows: int = 4) -> Tensor:
    """Smooth over neighbours and of different size in each channel, unlike noise."""
    values = torch.randn(rows, *shape, generator=torch.Generator().manual_seed(1)).cumsum(-1)
    return values * torch.linspace(0.1, 3, shape[0]).view(-1, *[1] * (len(shape) - 1))


def check(trainer: Tensor, engine: Tensor) -> dict[str, float]:
    projections = [agreement.velocity_projections(velocity) for velocity in (trainer, engine)]
    return checked(*projections, TOLERANCE)


def checked(trainer: Tensor, engine: Tensor, tolerance: float) -> dict[str, float]:
    pair = trainer, engine
    return agreement.check_velocities(agreement.velocity_difference(*pair), agreement.size_difference(*pair), tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_projections_are_those_of_a_float64_reference(shape: tuple[int, ...]) -> None:
    measured = velocities(*shape)
    places = range(1, measured[0].numel() + 1)
    hashes = list(places)
    for shift, factor in ((16, 0x7FEB352D), (15, 0x2C1B3C6D), (13, 0x297A2D39)):
        hashes = [((value ^ value >> shift) * factor) % 2**32 for value in hashes]
    signs = torch.tensor([1.0 if value >> 16 & 1 else -1.0 for value in hashes], dtype=torch.float64)
    expected = torch.zeros(len(measured), agreement.PROJECTIONS, dtype=torch.float64)
    buckets = torch.arange(len(hashes)) % agreement.PROJECTIONS
    expected.index_add_(1, buckets, measured.flatten(1).double() * signs)
    actual = agreement.velocity_projections(measured)
    assert actual.shape == (4, 33) and actual.dtype == torch.float32
    torch.testing.assert_close(actual[:, -1].double(), measured.flatten(1).double().norm(dim=1), rtol=1e-5, atol=0)
    torch.testing.assert_close(actual[:, :-1].double(), expected, rtol=1e-5, atol=1e-5 * expected.abs().max().item())


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("wrong", [0.0, 0.01, 0.05])
def test_the_check_fails_on_a_velocity_that_is_wrong_by_1_percent(shape: tuple[int, ...], wrong: float) -> None:
    """The whole velocity is too large, or each of its elements differs at random by that share of its size."""
    exact = velocities(*shape)
    noise = torch.randn(exact.shape, generator=torch.Generator().manual_seed(2))
    noise *= (exact.flatten(1).norm(dim=1) / noise.flatten(1).norm(dim=1)).view(-1, *[1] * len(shape))
    for engine, spread in ((exact * (1 + wrong), 0.02), (exact + wrong * noise, 0.5)):
        if wrong == 0:
            assert check(exact, engine)["rollout_corr/velocity_rel_diff"] == 0
            continue
        with pytest.raises(agreement.VelocityMismatch, match=r"more than 0\.001"):
            check(exact, engine)
        pair = [agreement.velocity_projections(velocity) for velocity in (engine, exact)]
        assert agreement.velocity_difference(*pair).mean().item() == pytest.approx(wrong, rel=spread)


def unit(like: Tensor, seed: int) -> Tensor:
    """A random direction for each row, orthogonal to the row, with the row's size."""
    direction = torch.randn(like.shape, generator=torch.Generator().manual_seed(seed)).flatten(1)
    rows = like.flatten(1)
    direction -= rows * ((direction * rows).sum(1, keepdim=True) / rows.pow(2).sum(1, keepdim=True))
    return (direction * rows.norm(dim=1, keepdim=True) / direction.norm(dim=1, keepdim=True)).view_as(like)


@pytest.mark.parametrize("rounding", [0.01, 0.024])  # measured: a small model, and one of 24 layers with guidance
def test_in_bfloat16_a_changed_size_is_seen_from_half_a_percent_and_a_rotation_from_five(rounding: float) -> None:
    """What docs/reference/algorithms.md says about the smallest errors that stop a run, from both sides."""
    exact = velocities(16, 64, 64, rows=64)
    rounded = exact + rounding * unit(exact, 5)
    limit = agreement.VELOCITY_TOLERANCES[torch.bfloat16]

    def passes(engine: Tensor) -> bool:
        try:
            checked(*(agreement.velocity_projections(velocity) for velocity in (rounded, engine)), limit)
        except agreement.VelocityMismatch:
            return False
        return True

    def rotated(share: float) -> Tensor:
        """Another direction, the same size."""
        return exact * (1 - share**2) ** 0.5 + share * unit(exact, 6)

    assert passes(exact) and passes(exact * 1.004) and passes(exact * 0.996)
    assert not passes(exact * 1.006) and not passes(exact * 0.994)
    assert passes(rotated(0.01)) and passes(rotated(0.04))
    assert not passes(rotated(0.055))


def test_what_is_not_a_number_fails_and_two_zeros_agree() -> None:
    zero = torch.zeros(2, agreement.PROJECTIONS + 1)
    assert (
        agreement.velocity_difference(zero, zero).tolist() == agreement.size_difference(zero, zero).tolist() == [0, 0]
    )
    for bad in (torch.full_like(zero, torch.nan), zero + 1):
        with pytest.raises(agreement.VelocityMismatch):
            checked(bad, zero, 1.0)
