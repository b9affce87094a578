"""When updates move the policy too far, the trainer says so once for each sign."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_omni.trainer.metrics import policy_drift
from verl_omni.trainer.metrics.collapse import ADVICE
from verl_omni.trainer.metrics.policy_drift import CLIP, SIGNS, DriftState
from verl_omni.trainer.metrics.run_warnings import RunWarnings
from verl_omni.trainer.report.run_data import parse_events
from verl_omni.trainer.report.statements import EXPLANATIONS
from verl_omni.trainer.run.run_folder import RunFolder

KL = "actor/kl"


def warnings(metric: str, values: list[float]) -> list[tuple[int, str]]:
    """The place of each warning, and its text."""
    state = DriftState()
    found = []
    for place, value in enumerate(values):
        state, messages = policy_drift.observe(state, {metric: value, "reward/mean": 1.0})
        found += [(place, message) for message in messages]
    return found


def test_a_clip_fraction_that_rises_to_nearly_all_is_found_once() -> None:
    ((place, message),) = warnings(CLIP, [0.1] * 10 + [0.95] * 10)
    assert place == 14, "the first step whose average of five is beyond the limit"
    assert "the clip fraction is 95% in the last 5 steps, and was 10% in the first 5" in message
    assert message.endswith(ADVICE)


@pytest.mark.parametrize(
    "values",
    [[0.0] * 20, [0.95] * 20, [0.3] * 5 + [0.85] * 20, [0.1] * 10 + [1.0] * 3 + [0.1] * 10],
    ids=["one optimizer step", "limited from the first step on", "below the limit", "a few steps"],
)
def test_other_clip_fractions_give_no_warning(values: list[float]) -> None:
    assert warnings(CLIP, values) == []


@pytest.mark.parametrize("metric", SIGNS)
def test_a_large_distance_is_found_once_and_again_after_a_recovery(metric: str) -> None:
    limit = SIGNS[metric].limit
    rising = [0.04 * limit * step for step in range(60)]
    ((place, message),) = warnings(metric, rising)
    assert sum(rising[place - 4 : place + 1]) / 5 >= limit > sum(rising[place - 5 : place]) / 5
    assert f"{sum(rising[place - 4 : place + 1]) / 5:.3g}" in message
    assert message.endswith(SIGNS[metric].advice)
    high, middle, low = (share * limit for share in (1.4, 0.6, 0.2))
    assert [place for place, _ in warnings(metric, [high] * 6 + [middle] * 6 + [high] * 6)] == [4]
    assert [place for place, _ in warnings(metric, [high] * 6 + [low] * 6 + [high] * 6)] == [4, 15]


@pytest.mark.parametrize(
    ("metric", "text"),
    [
        (
            "actor/kl",
            "far from the base model: the KL divergence of a step is 0.6 in the last 5 steps; at 0.5 the means",
        ),
        ("actor/distance_to_old", "far from the old policy: the mean squared difference of their velocities is 0.12"),
        (
            "actor/ratio_distance",
            "move the likelihood ratios of new to old policy by 1.2 on average in the last 5 steps",
        ),
    ],
)
def test_the_text_names_metric_and_limit(metric: str, text: str) -> None:
    ((_, message),) = warnings(metric, [1.2 * SIGNS[metric].limit] * 5)
    assert text in message


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(0, 2) | st.just(float("nan")), max_size=30), st.sampled_from([CLIP, *SIGNS]))
def test_any_numbers_give_a_verdict(values: list[float], metric: str) -> None:
    found = warnings(metric, values)
    assert len(found) <= max(0, len(values) - 4)


def test_a_resumed_run_repeats_no_warning(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    first = RunWarnings(folder)
    for step in range(1, 8):
        first.observe(step, folder.step({"step": step, KL: 0.7}))
    second = RunWarnings(RunFolder(tmp_path))
    second.restore()
    second.observe(8, {"step": 8, KL: 0.7})
    lines = (tmp_path / "progress.jsonl").read_text()
    (warning,) = [event for event in parse_events(lines) if event.event == "warning"]
    assert (warning.reason, warning.step) == (policy_drift.REASON, 5)
    assert json.loads(lines.splitlines()[-1])["step"] == 7


def test_the_report_explains_the_warning() -> None:
    assert policy_drift.REASON in EXPLANATIONS
