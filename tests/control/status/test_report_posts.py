"""Tests of trainers' reports: strict types, bounded values, merged within an attempt."""

import dataclasses
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from omni_operator.status.observed.trainer_report import ReportEvent, merge_event, parse_event

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(seconds=9)


def parsed(post: Any) -> ReportEvent:
    return parse_event(json.dumps(post).encode())


def posted(*posts: dict[str, Any]) -> Any:
    report = None
    for post in posts:
        report = merge_event(report, parsed(post), 1, NOW)
    return report


def test_a_step_event_updates_the_report() -> None:
    line = {"attempt": 1, "event": "step", "step": 7, "samples": 224, "eta_s": 12.0, "images_per_s": 12.5}
    line |= {"reward/mean": 0.5, "reward/std": 0.1, "weights/version": 7, "timing_s/sync": 0.3, "timing_s/step": 4.0}
    line |= {"rollout_corr/ratio_max": 1.1, "actor/loss": 0.1}
    report = posted({"event": "start", "total_steps": 10, "resumed_from": None}, line)
    assert (report.step, report.total_steps, report.version, report.samples) == (7, 10, 7, 224)
    assert (report.reward_mean, report.images_per_second, report.step_seconds, report.eta_seconds) == (0.5, 12.5, 4, 12)
    assert (report.synced_at, report.sync_seconds) == (NOW, 0.3)


def test_a_checkpoint_event_does_not_change_the_step() -> None:
    checkpoint = {"event": "checkpoint", "path": "runs/x/checkpoints/step_000040", "step": 40}
    report = posted({"event": "step", "step": 41}, checkpoint)
    assert (report.checkpoint, report.checkpoint_step, report.step) == ("step_000040", 40, 41)
    assert posted({"event": "checkpoint", "path": "/c/step_000007"}).checkpoint_step == 7


def test_an_error_may_name_its_reason() -> None:
    report = posted({"event": "error", "message": "no such file", "reason": "InvalidConfig"})
    assert (report.error, report.error_kind) == ("no such file", "InvalidConfig")
    assert posted({"event": "error", "message": "x", "reason": "Whatever"}).error_kind is None


def test_a_long_error_keeps_its_beginning_and_its_end() -> None:
    message = "ValueError: no colour 'mauve'; " + "frame " * 3000 + "prompt 7: a red cube"
    error = posted({"event": "error", "message": message}).error
    assert error.startswith("ValueError: no colour 'mauve'")
    assert error.endswith("prompt 7: a red cube")
    assert len(error) == 512


def test_the_last_warning_of_each_reason_is_kept() -> None:
    report = posted(
        {"event": "warning", "reason": "SamplesCollapsed", "message": "step 3"},
        {"event": "warning", "message": "no report"},
        {"event": "warning", "reason": "SamplesCollapsed", "message": "step 4"},
        {"event": "stopped", "message": "bye"},
    )
    assert [(warning.reason, warning.message) for warning in report.warnings] == [
        ("Warning", "no report"),
        ("SamplesCollapsed", "step 4"),
    ]


def test_a_new_attempt_resets_the_report() -> None:
    first = posted({"event": "step", "step": 9})
    assert merge_event(first, parsed({"event": "start"}), 2, LATER).step is None


@pytest.mark.parametrize(
    "name", ["ChildDeleted", "HeadLost", "Preempted", "DeadlineExceeded", "ImagePullFailed", "Unknown", "x" * 64]
)
def test_reasons_that_only_the_operator_observes_are_not_taken_from_a_trainer(name: str) -> None:
    assert posted({"event": "error", "message": "x", "reason": name}).error_kind is None


def test_unknown_reasons_of_warnings_share_one_entry() -> None:
    report = posted(*({"event": "warning", "reason": f"Made{number}", "message": "m"} for number in range(50)))
    assert [(warning.reason, warning.message) for warning in report.warnings] == [("Warning", "Made49: m")]


def test_texts_are_one_line_without_control_characters() -> None:
    report = posted({"event": "phase", "text": "a\x00\x1b[31m\nb"}, {"event": "error", "message": "c\r\x07d"})
    assert (report.phase, report.error) == ("a [31m b", "c d")


STEP = {"event": "step"}


@pytest.mark.parametrize(
    "post",
    [
        {},
        [],
        None,
        "step",
        {"event": "dance"},
        *({**STEP, "step": step} for step in (-1, "7", True, 7.5)),
        *({**STEP, name: 1e300} for name in ("reward/mean", "timing_s/step")),
        *({**STEP, name: -1} for name in ("reward/queued_requests", "eta_s")),
        {**STEP, "attempt": 10**30},
        {**STEP, "rollout/queued_samples": 2**60},
        {**STEP, "weights/version": [1]},
        {"event": "error", "message": "x" * 70_000},
        *({"event": "phase", "text": text} for text in ("x" * 1025, "\ud800")),
        *({"event": "checkpoint", "path": f"/c/{name}"} for name in ("x" * 900, "..", "a\nb")),
        *({"event": "checkpoint", "path": path} for path in ("/", "x/" * 3000)),
    ],
)
def test_malformed_events_are_refused(post: Any) -> None:
    with pytest.raises(ValidationError):
        parsed(post)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff\xfe",
        '{"event": "step"}'.encode("utf-16"),
        b'{"event": "step", "step": ' + b"9" * 5000 + b"}",
        b'{"event": "step", "eta_s": NaN}',
        b'{"event": "step", "reward/mean": -Infinity}',
        b'{"event": "step", "reward/mean": 1e999}',
        b"[" * 50_000,
    ],
)
def test_bodies_that_are_not_json_are_refused(body: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - pydantic's and json's errors are subclasses
        parse_event(body)


def test_a_checkpoint_with_many_digits_has_no_step() -> None:
    for digits in ("9" * 30, "²", "٣", ""):
        assert posted({"event": "checkpoint", "path": f"/c/step_{digits}"}).checkpoint_step is None


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([2**53, 10**30, -1, 1e300, 1e30, -1e30, 1e9, -0.0]),
    st.floats(),
    st.text(max_size=300),
    st.lists(st.integers(), max_size=3),
)
NAMES = [field.alias or name for name, field in ReportEvent.model_fields.items() if name != "event"]
FIELDS = st.dictionaries(st.sampled_from([*NAMES, "unknown"]), VALUES)
EVENTS = st.sampled_from(["start", "phase", "step", "checkpoint", "heartbeat", "warning", "error", "stopped", "done"])


@given(st.lists(st.tuples(EVENTS, FIELDS), min_size=1, max_size=20))
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_what_is_accepted_is_bounded(posts: list[tuple[str, dict[str, Any]]]) -> None:
    report = None
    for event, fields in posts:
        try:
            report = merge_event(report, parsed({"event": event, **fields}), 1, NOW)
        except ValueError:
            continue
    if report is None:
        return
    for field in dataclasses.fields(report):
        name = field.name
        value = getattr(report, field.name)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            assert abs(value) <= 1e30, name
        if isinstance(value, str):
            assert len(value) <= 1024, name
    assert len(report.warnings) <= 4
