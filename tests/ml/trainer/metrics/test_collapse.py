"""When a run's samples collapse, the trainer says so once; a run that learns nothing is left alone."""

import json
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ml.trainer.metrics import observed_courses
from verl_omni.trainer.metrics import collapse, step_metrics
from verl_omni.trainer.metrics.collapse import IMAGES, REWARD_SPREAD, CollapseState

CONSTANT = "reward/constant_prompts"
# Measured: `drl run examples/red-grpo.yaml`, and the same job at learning rate 0.
MEASURED = json.loads((Path(__file__).parent / "collapse.json").read_text())


warnings = partial(observed_courses.warnings, CollapseState(), collapse.observe)


def lines(run: str) -> list[dict[str, float]]:
    """The metrics of step 0, an evaluation, and of the training steps after it."""
    measured = [{"step": 0.0}]
    measured += [
        {"step": float(step), REWARD_SPREAD: spread} for step, spread in enumerate(MEASURED[run]["spreads"], 1)
    ]
    for step, diversity in MEASURED[run]["images"].items():
        measured[int(step)][IMAGES] = diversity
    return measured


def without_images(lines: list[dict[str, float]]) -> list[dict[str, float]]:
    return [{name: value for name, value in line.items() if name != IMAGES} for line in lines]


def test_the_example_that_paints_everything_red_is_found_once() -> None:
    ((place, message),) = warnings(lines("red-grpo"))
    assert lines("red-grpo")[place]["step"] == 40
    assert message.startswith("The images of different held-out prompts have become alike: their diversity")
    assert message.endswith(collapse.ADVICE)


def test_without_evaluations_the_spread_of_rewards_decides() -> None:
    training = without_images(lines("red-grpo"))
    ((place, message),) = warnings(training)
    assert 40 <= training[place]["step"] <= 55
    assert message.startswith("The samples of a prompt get nearly the same reward: the standard deviation within a")


@pytest.mark.parametrize(("run", "count"), [("control", 26), ("red-grpo", 36)])
def test_the_control_and_the_steps_before_the_collapse_give_no_warning(run: str, count: int) -> None:
    healthy = lines(run)[:count]
    assert len(healthy) == count and sum(IMAGES in line for line in healthy) > 1
    assert warnings(healthy) == warnings(without_images(healthy)) == []


def test_a_second_collapse_after_a_recovery_is_a_second_warning() -> None:
    diversities = [0.08, 0.01, 0.03, 0.01, 0.06, 0.01]
    assert [place for place, _ in warnings([{IMAGES: value} for value in diversities])] == [1, 5]
    spreads = [0.1] * 5 + [0.001] * 8 + [0.05] * 5 + [0.001] * 8
    assert [place for place, _ in warnings([{REWARD_SPREAD: value} for value in spreads])] == [9, 22]


def test_a_collapse_ends_at_half_of_the_first_diversity_or_a_tenth_of_the_largest_spread() -> None:
    images = ([0.08, 0.02, 0.019, 0.039, 0.01], [0.08, 0.02, 0.019, 0.04, 0.01])
    assert [[place for place, _ in warnings([{IMAGES: value} for value in run])] for run in images] == [[2], [2, 4]]
    for between, warned_at in ((0.009, [9]), (0.011, [9, 23])):
        spreads = [0.1] * 5 + [0.001] * 8 + [between] * 8 + [0.001] * 8
        places = [place for place, _ in warnings([{REWARD_SPREAD: value} for value in spreads])]
        assert places[:1] == [9] and len(places) == len(warned_at)


def test_numbers_that_are_not_finite_do_not_count() -> None:
    spreads = [value for spread in [0.1] * 5 + [0.001] * 4 for value in (spread, float("nan"))]
    assert warnings([{REWARD_SPREAD: value, IMAGES: float("inf")} for value in spreads]) == []


def test_a_reward_that_saturates_while_pictures_differ_is_no_collapse() -> None:
    spreads = [{REWARD_SPREAD: value} for value in [0.1] * 5 + [0.0] * 20]
    assert len(warnings(spreads)) == 1
    assert warnings([{IMAGES: 0.08}, {IMAGES: 0.07}, *spreads]) == []


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(0, 1) | st.just(float("nan")), max_size=30), st.booleans())
def test_any_numbers_give_a_verdict(values: list[float], images: bool) -> None:
    warned = warnings([{IMAGES if images else REWARD_SPREAD: value} for value in values])
    assert len(warned) <= len(values)


def test_the_spread_within_prompts_is_not_that_between_them() -> None:
    scores = torch.tensor([0.0, 0.0, 1.0, 1.0])
    assert step_metrics.reward_spread(scores, ["a", "a", "b", "b"]) == {REWARD_SPREAD: 0.0, CONSTANT: 2}
    assert step_metrics.reward_spread(scores, ["a", "b", "a", "b"]) == {REWARD_SPREAD: 0.5, CONSTANT: 0}
    assert step_metrics.reward_spread(scores, ["a", "b", "c", "d"]) == {}, "of one sample there is no deviation"


def test_the_diversity_of_pictures_is_their_mean_pixel_deviation() -> None:
    images = torch.randint(0, 256, (5, 3, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    expected = (images.double() / 255).std(dim=0, correction=0).mean().item()
    assert step_metrics.image_diversity(images)[IMAGES] == pytest.approx(expected)
    assert step_metrics.image_diversity(images[:1].expand(4, -1, -1, -1)) == {IMAGES: pytest.approx(0, abs=1e-9)}
    extremes = torch.stack([torch.zeros(3, 4, 4), torch.full((3, 4, 4), 255.0)]).to(torch.uint8)
    assert step_metrics.image_diversity(extremes) == {IMAGES: 0.5}
    assert step_metrics.image_diversity(images[:1]) == {}
    assert step_metrics.image_diversity(images.float()) == {}, "latents have no scale"
