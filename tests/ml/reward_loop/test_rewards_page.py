"""docs/reference/rewards.md has a row for every scorer, with each of its arguments."""

from __future__ import annotations

from pathlib import Path

import pytest

from verl_omni.reward_loop.rewards import SCORERS, UNAVAILABLE, get_scorer
from verl_omni.reward_loop.scorer_signature import signature_of

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "rewards.md").read_text(encoding="utf-8")


def row_of(scorer: str) -> list[str]:
    (row,) = [line for line in PAGE.splitlines() if line.startswith(f"| `{scorer}` |")]
    return row.split(" | ")


@pytest.mark.parametrize("scorer", SCORERS)
def test_the_page_has_every_scorer_and_every_argument(scorer: str) -> None:
    arguments = row_of(scorer)[1]
    assert {name for name in signature_of(get_scorer(scorer)).settings if f"`{name}`" not in arguments} == set()


@pytest.mark.parametrize("scorer", UNAVAILABLE)
def test_the_page_says_why_a_scorer_of_the_reference_is_missing(scorer: str) -> None:
    assert UNAVAILABLE[scorer] in row_of(scorer)[1]
