"""Warnings of a run: when it has a constant reward or a one-sided clip range, and that each is one event."""

from functools import partial
from pathlib import Path

import pytest
import torch

from tests.ml.trainer.metrics import observed_courses
from verl_omni.trainer.metrics import collapse, degradation, policy_drift, run_warnings, step_metrics
from verl_omni.trainer.metrics.run_warnings import RewardState, RunWarnings, clipping_text, observe_reward
from verl_omni.trainer.report.run_data import parse_events
from verl_omni.trainer.report.statements import EXPLANATIONS
from verl_omni.trainer.run.run_folder import RunFolder

Line = dict[str, float | None]
GROUPS = [f"prompt {number // 6}" for number in range(12)]
ONE_SIDED: Line = {"actor/excluded_at_start_positive": 0.0, "actor/excluded_at_start_negative": 0.4}
# Reason -> the step of the warning, and the metrics of all steps.
COURSES: dict[str, tuple[int, list[Line]]] = {
    collapse.REASON: (2, [{collapse.IMAGES: diversity} for diversity in (0.08, 0.01, 0.01)]),
    run_warnings.CONSTANT_REWARD: (5, [{collapse.REWARD_SPREAD: 0.0, "reward/mean": 0.5}] * 8),
    run_warnings.ONE_SIDED: (1, [ONE_SIDED] * 3),
    policy_drift.REASON: (5, [{"actor/kl": 0.7}] * 8),
    degradation.REASON: (7, [{"images/dark": 0.1}] * 5 + [{"images/dark": 0.9}] * 8),
}


@pytest.mark.parametrize("before", [True, False], ids=["resumed before it", "resumed after it"])
@pytest.mark.parametrize("reason", COURSES)
def test_the_run_folder_gets_the_warning_once_wherever_the_run_is_resumed(
    reason: str, before: bool, tmp_path: Path
) -> None:
    warned, lines = COURSES[reason]
    cut = warned - 1 if before else len(lines) - 1
    for part in (lines[:cut], lines[cut:]):
        observer = RunWarnings(RunFolder(tmp_path))
        observer.restore()
        for line in part:
            step = len(observer.folder.metrics()) + 1
            observer.observe(step, observer.folder.step({"step": step, **line}))
    events = parse_events((tmp_path / "progress.jsonl").read_text())
    warnings = [(event.reason, event.step) for event in events if event.event == "warning"]
    assert warnings == [(reason, warned)]
    assert reason in EXPLANATIONS or reason == run_warnings.ONE_SIDED, "its text says what to do"


reward_warnings = partial(observed_courses.warnings, RewardState(), observe_reward)


def scored(scores: list[float]) -> Line:
    """What a step records of the rewards of two prompts with six samples each."""
    rewards = torch.tensor(scores)
    return {**step_metrics.rewards(rewards, {}), **step_metrics.reward_spread(rewards, GROUPS)}


@pytest.mark.parametrize("rewards", [(0.0, 0.0), (0.1, 0.7), (1e6 + 0.3, -1e-8), (0.123456789,) * 2], ids=str)
def test_a_reward_that_never_varies_is_found_once(rewards: tuple[float, float]) -> None:
    """Also if prompts differ, whatever the numbers are."""
    same = scored([rewards[0]] * 6 + [rewards[1]] * 6)
    ((place, message),) = reward_warnings([same] * 20)
    assert place == 4
    assert message.startswith("In the first 5 steps, all samples of each prompt had the same reward (")


def test_one_sample_that_differs_in_one_of_the_first_steps_is_enough() -> None:
    same = scored([0.0] * 12)
    varied = scored([0.0] * 11 + [1.0])
    assert reward_warnings([same] * 4 + [varied] + [same] * 20) == []
    assert reward_warnings([varied, *[same] * 20]) == [], "that is a collapse"


def excluded(positive: float | None, negative: float | None, staleness: int = 0) -> Line:
    shares = {"positive": positive, "negative": negative}
    return {
        "weights/staleness": staleness,
        **{f"actor/excluded_at_start_{sign}": share for sign, share in shares.items() if share is not None},
    }


@pytest.mark.parametrize(
    ("metrics", "warns"),
    [
        (excluded(0.0, 0.33), True),
        (excluded(0.5, 0.1), True),
        (excluded(0.4, 0.5), False),
        (excluded(0.0, 0.33, staleness=1), False),  # the policy has moved since these samples
        (excluded(None, 0.33), False),  # no sample with a positive advantage
        ({}, False),
    ],
    ids=str,
)
def test_a_clip_range_that_excludes_one_sign_is_named(metrics: Line, warns: bool) -> None:
    text = clipping_text(metrics)
    assert (text is not None) == warns
    if metrics == excluded(0.0, 0.33):
        assert "excluded 33% of the terms with a negative advantage and 0% of those with a positive one" in str(text)
