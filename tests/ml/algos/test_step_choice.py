"""Steps that a sample is trained on: their number, and which."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from verl_omni.algos import grpo


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
