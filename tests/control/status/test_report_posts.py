"""Tests of trainers' reports: parsed leniently, merged within an attempt, ignored across attempts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from omni_operator.status.reasons import FailureReason
from omni_operator.status.trainer_report import is_current, merge_event, parse_event

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(seconds=9)


def posted(*posts: dict[str, Any]) -> Any:
    report = None
    for post in posts:
        report = merge_event(report, parse_event(post), NOW)
    return report


def test_a_step_event_updates_the_report() -> None:
    line = {
        "attempt": 1, "event": "step", "step": 7, "reward/mean": 0.5, "reward/std": 0.1, "weights/version": 7,
        "images_per_s": 12.5, "timing_s/sync": 0.3, "timing_s/step": 4.0, "eta_s": 12.0, "rollout_corr/ratio_max": 1.1,
        "actor/loss": 0.1, "samples": 224,
    }  # fmt: skip
    report = posted({"attempt": 1, "event": "start", "total_steps": 10, "resumed_from": None}, line)
    assert (report.step, report.total_steps, report.version, report.samples) == (7, 10, 7, 224)
    assert (report.reward_mean, report.images_per_second, report.step_seconds, report.eta_seconds) == (0.5, 12.5, 4, 12)
    assert (report.synced_at, report.sync_seconds) == (NOW, 0.3)


def test_a_checkpoint_event_does_not_change_the_step() -> None:
    report = posted(
        {"attempt": 1, "event": "step", "step": 41},
        {"attempt": 1, "event": "checkpoint", "path": "runs/x/checkpoints/step_000040", "step": 40},
    )
    assert (report.checkpoint, report.checkpoint_step, report.step) == ("step_000040", 40, 41)
    assert posted({"attempt": 1, "event": "checkpoint", "path": "/c/step_000007"}).checkpoint_step == 7


def test_an_error_may_name_its_reason() -> None:
    report = posted({"attempt": 1, "event": "error", "message": "no such file", "reason": "InvalidConfig"})
    assert (report.error, report.error_kind) == ("no such file", FailureReason.INVALID_CONFIG)
    assert posted({"attempt": 1, "event": "error", "message": "x", "reason": "Whatever"}).error_kind is None


def test_a_long_error_keeps_its_beginning_and_its_end() -> None:
    message = "ValueError: no colour 'mauve'; " + "frame " * 3000 + "prompt 7: a red cube"
    error = posted({"attempt": 1, "event": "error", "message": message}).error
    assert error.startswith("ValueError: no colour 'mauve'")
    assert error.endswith("prompt 7: a red cube")
    assert len(error) == 512


def test_the_last_warning_of_each_reason_is_kept() -> None:
    report = posted(
        {"attempt": 1, "event": "warning", "reason": "SamplesCollapsed", "message": "step 3"},
        {"attempt": 1, "event": "warning", "message": "no report"},
        {"attempt": 1, "event": "warning", "reason": "SamplesCollapsed", "message": "step 4"},
        {"attempt": 1, "event": "stopped", "message": "bye"},
    )
    assert [(found.reason, found.message) for found in report.warnings] == [
        ("Warning", "no report"), ("SamplesCollapsed", "step 4"),
    ]  # fmt: skip


def test_a_new_attempt_resets_the_report() -> None:
    first = merge_event(None, parse_event({"attempt": 1, "event": "step", "step": 9}), NOW)
    assert not is_current(
        merge_event(None, parse_event({"attempt": 2, "event": "start"}), NOW),
        parse_event({"attempt": 1, "event": "step"}),
    )
    assert merge_event(first, parse_event({"attempt": 2, "event": "start"}), LATER).step is None


@pytest.mark.parametrize(
    "post",
    [
        {}, {"attempt": 0, "event": "step"}, {"attempt": 1, "event": "dance"},
        {"attempt": 1, "event": "step", "step": -1},
        {"attempt": 1, "event": "step", "reward/mean": float("nan")}, {"attempt": 1, "event": "step", "step": 2**60},
        {"attempt": 1, "event": "error", "message": "x" * 70_000},
    ],
)  # fmt: skip
def test_malformed_events_are_refused(post: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        parse_event(post)


FIELDS = st.fixed_dictionaries(
    {
        "attempt": st.integers(1, 3),
        "event": st.sampled_from(["start", "step", "checkpoint", "heartbeat", "error", "warning", "stopped", "done"]),
    },
    optional={
        "step": st.integers(0, 100), "samples": st.integers(0, 1000), "path": st.text(max_size=20),
        "weights/version": st.integers(0, 100), "message": st.text(max_size=600), "eta_s": st.floats(0, 1e6),
    },
)  # fmt: skip


@given(st.lists(FIELDS, min_size=1, max_size=20))
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_report_belongs_to_the_newest_attempt(posts: list[dict[str, Any]]) -> None:
    report = None
    for post in posts:
        parsed = parse_event(post)
        if is_current(report, parsed):
            report = merge_event(report, parsed, NOW)
    assert report is not None
    assert report.attempt == max(post["attempt"] for post in posts)
    assert report.error is None or len(report.error) <= 512
