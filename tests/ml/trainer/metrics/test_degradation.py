"""When a policy exploits its scorer, the statistics of its images show it, and the trainer says so once."""

import json
from functools import partial
from pathlib import Path

import pytest
import torch

from tests.ml.trainer.metrics import observed_courses
from verl_omni.trainer.metrics import degradation, step_metrics
from verl_omni.trainer.metrics.degradation import DegradationState
from verl_omni.utils.metrics.image_statistics import measure

warnings = partial(observed_courses.warnings, DegradationState(), degradation.observe)


def darkening(steps: int) -> list[dict[str, float | None]]:
    """A background that goes dark while the reward of recognized text rises, as in a public run."""
    return [
        {"images/dark": 0.45 + 0.48 * step / steps, "reward/mean": 0.5 + 0.4 * step / steps}
        for step in range(steps + 1)
    ]


def test_a_background_that_goes_dark_while_the_reward_rises_is_found_once() -> None:
    ((place, message),) = warnings(darkening(60))
    dark = [line["images/dark"] or 0.0 for line in darkening(60)]
    first = sum(dark[:5]) / 5
    assert sum(dark[place - 4 : place + 1]) / 5 >= first + 0.3 > sum(dark[place - 5 : place]) / 5
    assert "share of dark pixels 0.47 -> 0.77" in message
    assert "The reward went from 0.513 to 0.767 meanwhile" in message


def test_a_run_that_is_rewarded_for_darkness_is_found() -> None:
    """Recorded: examples/shapes-brightness.yaml at learning rate 0.01, rewarded for 1 - brightness; 12 steps."""
    columns = json.loads((Path(__file__).parent / "degradation.json").read_text())
    measured = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    assert measured[-1]["reward/mean"] > 3 * measured[0]["reward/mean"]
    warned = warnings(measured)
    assert [measured[place]["step"] for place, _ in warned] == [9, 11, 12]
    assert "luminance 0.75 -> 0.38" in warned[1][1]
    assert "share of dark pixels 0.0023 -> 0.33" in warned[2][1]


@pytest.mark.parametrize(
    ("name", "before", "after", "warns"),
    [
        ("images/dark", 0.9, 0.2, False),
        ("images/clipped", 0.1, 0.5, True),
        ("images/luminance", 0.8, 0.3, True),
        ("images/luminance", 0.3, 0.8, True),
        ("images/saturation", 0.3, 0.55, False),
        ("images/edges", 0.04, 0.009, True),
        ("images/edges", 0.04, 0.2, True),
        ("images/jpeg_bits", 2.0, 6.0, False),
        ("images/diversity", 0.2, 0.04, True),
        ("images/diversity", 0.04, 0.2, False),
    ],
)
def test_each_statistic_has_its_limits(name: str, before: float, after: float, warns: bool) -> None:
    early: dict[str, float | None] = {name: before}
    late: dict[str, float | None] = {name: after}
    assert len(warnings([early] * 5 + [late] * 20)) == warns


def test_a_step_without_images_and_a_few_odd_steps_do_not_count() -> None:
    usual: dict[str, float | None] = {"images/dark": 0.2}
    assert warnings([usual] * 5 + [{"reward/mean": 1.0}] * 20) == []
    assert warnings([usual] * 5 + [{"images/dark": 0.6}] * 3 + [usual] * 20) == []
    assert warnings([usual] * 5 + [{"images/dark": None}, {"images/dark": float("nan")}] * 20) == []


def test_metrics_of_a_batch_are_means_and_diversity_is_within_prompts() -> None:
    black, white = (measure(torch.full((3, 16, 16), value, dtype=torch.uint8)) for value in (0, 255))
    metrics = step_metrics.image_statistics([black, black, white, white], ["a", "a", "b", "b"])
    assert metrics["images/dark"] == 0.5
    assert metrics["images/diversity"] == 0.0, "prompts may differ"
    assert step_metrics.image_statistics([black, white], ["a", "a"])["images/diversity"] == pytest.approx(0.5)
    held_out = step_metrics.image_statistics([black, white], ["val-0", "val-1"], prefix="val/")
    assert "val/images/dark" in held_out and "val/images/diversity" not in held_out
    assert step_metrics.image_statistics([], []) == {}
