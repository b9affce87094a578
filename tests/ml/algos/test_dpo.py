"""Online Diffusion-DPO against float64."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_omni.algos import dpo

ERRORS = st.floats(0, 2)


@given(ERRORS, ERRORS, ERRORS, ERRORS, st.floats(0.1, 20))
@settings(max_examples=80, deadline=None)
def test_the_loss_against_float64(
    better: float, base_better: float, worse: float, base_worse: float, beta: float
) -> None:
    """Eq. 14 of the paper, with its signs: -log sigmoid(-beta/2 ((w - w_ref) - (l - l_ref)))."""
    inside = -beta / 2 * ((better - base_better) - (worse - base_worse))
    want = math.log1p(math.exp(-inside))
    margin = dpo.margin(*(torch.tensor([value]) for value in (better, base_better, worse, base_worse)))
    assert dpo.loss(margin, beta=beta).item() == pytest.approx(want, rel=1e-4, abs=1e-5)


def test_a_large_margin_has_a_finite_loss() -> None:
    assert dpo.loss(torch.tensor([-1e4]), beta=2.0).item() == pytest.approx(1e4)
    assert dpo.loss(torch.tensor([1e4]), beta=2.0).item() == 0


@given(st.lists(st.lists(st.integers(-3, 3), min_size=1, max_size=5), min_size=1, max_size=4), st.randoms())
@settings(max_examples=80, deadline=None)
def test_pairs_are_the_best_and_the_worst_of_each_group(groups: list[list[int]], random: object) -> None:
    rows = [(reward, f"g{number}") for number, group in enumerate(groups) for reward in group]
    random.shuffle(rows)  # type: ignore[attr-defined]
    rewards = torch.tensor([float(r) for r, _ in rows])
    names = [name for _, name in rows]
    best, worst = dpo.pairs(rewards, names)
    assert len(best) == len(worst) == len(groups)
    for chosen, rejected in zip(best.tolist(), worst.tolist(), strict=True):
        assert names[chosen] == names[rejected]
        group_rewards = [reward for reward, name in rows if name == names[chosen]]
        assert rewards[chosen] == max(group_rewards) and rewards[rejected] == min(group_rewards)
        assert (chosen == rejected) == (len(set(group_rewards)) == 1)
    assert sorted(names[row] for row in best.tolist()) == sorted({*names})


def test_bad_rewards_are_refused() -> None:
    with pytest.raises(ValueError, match="2 rewards for 1 rows"):
        dpo.pairs(torch.tensor([1.0, 2.0]), ["a"])
    with pytest.raises(ValueError, match="infinite"):
        dpo.pairs(torch.tensor([1.0, math.inf]), ["a", "a"])


def test_samples_without_a_reward_are_in_no_pair_unless_their_group_has_none() -> None:
    nan = math.nan
    rewards = torch.tensor([nan, -3.0, nan, -2.0, nan, nan, -7.0, nan])
    best, worst = dpo.pairs(rewards, ["a", "a", "b", "a", "b", "c", "c", "a"])
    assert best.tolist() == [3, 2, 6] and worst.tolist() == [1, 2, 6]
