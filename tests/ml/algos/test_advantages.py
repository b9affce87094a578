"""Advantages, losses, windows, agreement, choice of steps."""

import math
import statistics
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_omni.algos import advantages, agreement, grpo, window
from verl_omni.algos.sde_settings import SdeSettings

REWARDS = st.lists(st.floats(-5, 5), min_size=2, max_size=6)


@given(st.lists(REWARDS, min_size=1, max_size=4), st.booleans())
@settings(max_examples=60, deadline=None)
def test_advantages_against_float64(groups: list[list[float]], global_std: bool) -> None:
    flat = [reward for group in groups for reward in group]
    names = [f"g{index}" for index, group in enumerate(groups) for _ in group]
    computed = advantages.group_advantages(torch.tensor(flat), names, global_std=global_std)
    want = []
    for group in groups:
        spread = statistics.stdev(flat if global_std else group)
        want += [(reward - statistics.fmean(group)) / (spread + 1e-4) for reward in group]
    assert computed.tolist() == pytest.approx(want, rel=2e-3, abs=2e-3)


@given(st.lists(st.lists(st.tuples(*[st.floats(-5, 5)] * 3), min_size=2, max_size=5), min_size=1, max_size=3))
@settings(max_examples=40, deadline=None)
def test_a_normalized_sum_against_float64(groups: list[list[tuple[float, float, float]]]) -> None:
    weights = [2.0, 0.5, -1.0]
    flat = [scores for group in groups for scores in group]
    names = [f"g{index}" for index, group in enumerate(groups) for _ in group]
    computed = advantages.normalized_sum(torch.tensor(flat, dtype=torch.float64), weights, names)
    want = []
    for group in groups:
        columns = list(zip(*group, strict=True))
        want += [
            sum(
                weight * (score - statistics.fmean(column)) / (statistics.stdev(column) + 1e-4)
                for weight, score, column in zip(weights, scores, columns, strict=True)
            )
            for scores in group
        ]
    assert computed.dtype == torch.float32 and computed.tolist() == pytest.approx(want, rel=1e-5, abs=1e-5)


UNSCORED = st.lists(st.lists(st.none() | st.floats(-30, -20), min_size=1, max_size=6), min_size=1, max_size=4)


@given(UNSCORED, st.booleans(), st.booleans())
@settings(max_examples=60, deadline=None)
def test_samples_without_a_reward_have_advantage_0_and_change_no_other(
    groups: list[list[float | None]], global_std: bool, normalize: bool
) -> None:
    flat = [math.nan if reward is None else reward for group in groups for reward in group]
    names = [f"g{index}" for index, group in enumerate(groups) for _ in group]
    kind = {"global_std": global_std, "normalize": normalize}
    result = advantages.group_advantages(torch.tensor(flat), names, **kind).tolist()
    kept = [row for row, reward in enumerate(flat) if not math.isnan(reward)]
    alone = advantages.group_advantages(torch.tensor([flat[row] for row in kept]), [names[row] for row in kept], **kind)
    assert [result[row] for row in kept] == alone.tolist()
    assert [value for row, value in enumerate(result) if row not in kept] == [0.0] * (len(flat) - len(kept))


def test_a_sample_without_one_score_takes_no_part_in_a_normalized_sum() -> None:
    scores = torch.tensor([[1.0, 10.0], [math.nan, 900.0], [3.0, 40.0], [2.0, 10.0]])
    computed = advantages.normalized_sum(scores, [1.0, 2.0], ["a"] * 4)
    alone = advantages.normalized_sum(scores[[0, 2, 3]], [1.0, 2.0], ["a"] * 3)
    assert computed[[0, 2, 3]].tolist() == alone.tolist() and computed.isnan().tolist() == [False, True, False, False]


def test_equal_rewards_have_no_advantage() -> None:
    computed = advantages.group_advantages(torch.full((3,), 3.488598273467498), ["a"] * 3, global_std=False)
    assert computed.dtype == torch.float32
    assert computed.abs().max() < 1e-9


def test_a_single_sample_has_no_advantage() -> None:
    assert advantages.group_advantages(torch.tensor([3.0, 1.0, 2.0]), ["a", "b", "b"])[0] == 0
    assert advantages.group_advantages(torch.tensor([3.0]), ["a"]).tolist() == [0], "the batch has no deviation either"


def test_bad_rewards_are_refused() -> None:
    with pytest.raises(ValueError, match="infinite"):
        advantages.group_advantages(torch.tensor([-math.inf, 1.0]), ["a", "a"])
    with pytest.raises(ValueError, match="2 rewards for 1 rows"):
        advantages.group_advantages(torch.tensor([1.0, 1.0]), ["a"])
    with pytest.raises(ValueError, match="infinite"):
        advantages.normalized_sum(torch.full((2, 1), math.inf), [1.0], ["a", "a"])
    with pytest.raises(ValueError, match="shorter"):
        advantages.normalized_sum(torch.ones(2, 1), [1.0, 1.0], ["a", "a"])


@pytest.mark.parametrize("advantage", [1.0, 0.0, -1.0])
def test_a_clipped_ratio_that_overflows_has_a_finite_loss_and_gradient(advantage: float) -> None:
    log_ratio = torch.tensor([100.0], requires_grad=True)
    loss = grpo.clipped(log_ratio, torch.tensor([advantage]), clip_ratio=1e-4, adv_clip_max=5.0)
    loss.sum().backward()
    assert log_ratio.grad is not None and log_ratio.grad.item() == 0
    assert loss.item() == pytest.approx({1.0: -1.0001, 0.0: 0.0, -1.0: math.exp(20)}[advantage])


@given(st.floats(-0.5, 0.5), st.floats(-8, 8), st.floats(1e-4, 0.3))
@settings(max_examples=80, deadline=None)
def test_clipped_loss_against_float64(difference: float, advantage: float, clip: float) -> None:
    loss = grpo.clipped(torch.tensor([difference]), torch.tensor([advantage]), clip_ratio=clip, adv_clip_max=5.0)
    bounded = min(max(advantage, -5.0), 5.0)
    ratio = math.exp(difference)
    want = max(-bounded * ratio, -bounded * min(max(ratio, 1 - clip), 1 + clip))
    assert loss.item() == pytest.approx(want, rel=1e-4, abs=1e-5)


@given(st.floats(0.05, 2), st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_a_normalized_ratio_is_linear_in_the_noise(std: float, seed: int) -> None:
    """In float64: of latents old_mean + std e, it is the mean of (mean - old_mean) e, without any bias or std."""
    generator = torch.Generator().manual_seed(seed)
    old, noise, change = (torch.randn(3, 2, 4, 4, generator=generator, dtype=torch.float64) for _ in range(3))
    mean = old + 0.1 * change
    x = old + std * noise
    normals = (torch.distributions.Normal(center, std) for center in (mean, old))
    new_density, old_density = (normal.log_prob(x).flatten(1).mean(1) for normal in normals)
    scale = torch.full((3, 1, 1, 1), std)
    ratio = grpo.normalized_log_ratio((new_density - old_density).float(), mean.float(), old.float(), scale)
    want = (0.1 * change * noise).flatten(1).mean(1)
    assert ratio.tolist() == pytest.approx(want.tolist(), rel=1e-3, abs=1e-5)


@given(st.floats(-0.5, 0.5), st.floats(-8, 8, width=32), st.floats(0, 1e-4), st.floats(0, 1e-4))
@settings(max_examples=80, deadline=None)
def test_masked_loss_against_float64(difference: float, advantage: float, divergence: float, threshold: float) -> None:
    """Only a step that is too far from the old policy and would move further from it is excluded."""
    log_ratio = torch.tensor([difference], requires_grad=True)
    far = torch.tensor([divergence])
    threshold = torch.tensor(threshold).item()  # torch compares in float32
    loss, excluded = grpo.masked(log_ratio, torch.tensor([advantage]), far, threshold=threshold, adv_clip_max=5.0)
    loss.sum().backward()
    ratio = math.exp(log_ratio.item())
    outward = (advantage > 0 and log_ratio.item() > 0) or (advantage < 0 and log_ratio.item() < 0)
    want = 0.0 if outward and far.item() > threshold else -min(max(advantage, -5.0), 5.0) * ratio
    assert loss.item() == pytest.approx(want, rel=1e-5, abs=1e-9)
    assert log_ratio.grad is not None and log_ratio.grad.item() == pytest.approx(want, rel=1e-5, abs=1e-9)
    assert excluded.item() == (outward and far.item() > threshold)


def test_an_excluded_ratio_that_overflows_has_no_gradient() -> None:
    log_ratio = torch.tensor([200.0], requires_grad=True)
    loss, _ = grpo.masked(log_ratio, torch.ones(1), torch.ones(1), threshold=1e-5, adv_clip_max=5.0)
    loss.sum().backward()
    assert loss.item() == 0 and log_ratio.grad is not None and log_ratio.grad.item() == 0


@given(st.integers(3, 30), st.integers(0, 2**40), st.data())
@settings(max_examples=80, deadline=None)
def test_a_random_window_lies_in_its_bounds(steps: int, seed: int, data: st.DataObject) -> None:
    low = data.draw(st.integers(0, steps - 1))
    high = data.draw(st.integers(low + 1, steps))
    size = data.draw(st.integers(1, high - low))
    sde = SdeSettings(window_size=size, window_range=(low, high))
    chosen = window.place(sde, steps=steps, seed=seed, training_step=0)
    assert chosen == tuple(range(chosen[0], chosen[0] + size)) and low <= chosen[0] and chosen[-1] < high
    chosen = window.place(replace(sde, contiguous=False), steps=steps, seed=seed, training_step=0)
    assert len(set(chosen)) == size and sorted(chosen) == list(chosen) and low <= chosen[0] and chosen[-1] < high


def test_a_progressive_window_is_contiguous() -> None:
    with pytest.raises(ValueError, match="write sde_contiguous=true or sample_strategy=random"):
        SdeSettings.read({"sample_strategy": "progressive", "sde_contiguous": False})


def test_without_a_size_the_window_has_all_steps_but_the_last() -> None:
    assert window.place(SdeSettings(), steps=9, seed=1, training_step=0) == tuple(range(8))
    assert window.place(SdeSettings(window_range=(0, 4)), steps=9, seed=1, training_step=0) == (0, 1, 2, 3)
    for size, bounds in ((5, (0, 4)), (4, (1, 4))):
        with pytest.raises(ValueError, match="does not fit"):
            SdeSettings(window_size=size, window_range=bounds).bounds(9)


def test_log_prob_differences_are_measured_and_large_ones_refused() -> None:
    metrics = agreement.check_log_probs(torch.tensor([0.002, -0.006]), tolerance=0.01)
    assert metrics == {
        "rollout_corr/mean_abs_diff": pytest.approx(0.004),
        "rollout_corr/max_abs_diff": pytest.approx(0.006),
        "rollout_corr/ratio_mean": pytest.approx((math.exp(0.002) + math.exp(-0.006)) / 2),
        "rollout_corr/ratio_max": pytest.approx(math.exp(0.002)),
        "rollout_corr/kl": pytest.approx(0.002),
        "rollout_corr/k3_kl": pytest.approx((0.002**2 + 0.006**2) / 4, rel=1e-2),
    }
    for bad in (torch.tensor([0.1]), torch.tensor([math.nan])):
        with pytest.raises(agreement.LogProbMismatch):
            agreement.check_log_probs(bad, tolerance=0.01)


@given(st.integers(1, 50), st.integers(1, 100))
def test_the_number_is_rounded_up(steps: int, hundredths: int) -> None:
    exact = Fraction(hundredths, 100) * steps
    assert grpo.chosen_count(steps, hundredths / 100) == -(-exact.numerator // exact.denominator)


def test_steps_differ_and_depend_on_the_seed_of_the_row_alone() -> None:
    seeds = torch.arange(20)
    steps = grpo.choose_steps(seeds, 8, 0.5)
    assert steps.shape == (20, 4) and steps.dtype == torch.int64
    assert all(len(set(row)) == 4 and set(row) <= set(range(8)) for row in steps.tolist())
    assert torch.equal(grpo.choose_steps(seeds[7:9], 8, 0.5), steps[7:9])
    assert len({tuple(row) for row in steps.tolist()}) > 10


def test_every_step_is_chosen_equally_often() -> None:
    """3 of 5 steps: each in 0.6 of the rows, within five standard errors."""
    rows = 4000
    steps = grpo.choose_steps(torch.arange(rows), 5, 0.6)
    shares = torch.bincount(steps.flatten(), minlength=5) / rows
    assert shares.tolist() == pytest.approx([0.6] * 5, abs=5 * (0.6 * 0.4 / rows) ** 0.5)
