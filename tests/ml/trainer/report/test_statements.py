"""Sentences and values of the report: results, endings, warnings, gaps."""

import pytest

from verl_omni.trainer.report import statements
from verl_omni.trainer.report.plots import scorer_metrics
from verl_omni.trainer.report.run_data import Event, Run


def evaluated(step: int, mean: float, stderr: float = 0.02, **more: float) -> dict[str, float | None]:
    return {"step": step, "val/reward/mean": mean, "val/reward/stderr": stderr, **more}


def trained(step: int, **more: float | None) -> dict[str, float | None]:
    return {"step": step, "weights/version": step, "reward/mean": 0.5, **more}


def test_a_change_is_given_in_standard_errors() -> None:
    run = Run("r", lines=[evaluated(0, 0.25, 0.03), evaluated(40, 0.75, 0.04)])
    assert statements.summary(run) == (
        "The held-out reward rose from 0.250 to 0.750 in 40 steps (+0.500, 10.0 standard errors)."
    )


def test_a_small_change_is_called_noise() -> None:
    run = Run("r", lines=[evaluated(0, 0.5), evaluated(6, 0.48)])
    assert statements.summary(run) == (
        "The held-out reward changed from 0.500 to 0.480 in 6 steps (-0.020, 0.7 standard errors, which is within "
        "noise)."
    )


START = Event(event="start", total_steps=9)
FAILURE = Event(event="error", message="no memory")


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([START], "At step 3 of 9: still running, or ended without a final event."),
        ([START, FAILURE], "Failed at step 3 of 9: no memory"),
        ([START, Event(event="stopped")], "Stopped at step 3 of 9. Run the same command to resume"),
        ([START, FAILURE, START], "At step 3 of 9: still running"),
        ([Event(event="start", total_steps=3)], "Completed all 3 steps."),
        ([Event(event="start", total_steps=1)], "Completed its only step."),
        ([], "At step 3: still running"),
    ],
)
def test_the_ending_of_a_run(events: list[Event], expected: str) -> None:
    run = Run("r", lines=[trained(step) for step in (1, 2, 3)], events=events)
    assert statements.ending(run).startswith(expected)
    assert statements.failed(run) == (expected.startswith("Failed"))


def test_an_empty_folder_makes_no_claims() -> None:
    assert statements.ending(Run("r")) == "This folder contains no metrics and no events."
    assert statements.notes(Run("r")) == []
    assert statements.summary(Run("r")) == "0 training steps."
    assert statements.facts(Run("r")) == []
    assert statements.phase_totals(Run("r")) == []
    assert statements.warnings(Run("r")) == []
    assert statements.agreement([]) is None
    assert statements.weight_versions([]) is None


def test_steps_without_metrics_are_named() -> None:
    run = Run("r", lines=[trained(step) for step in (1, 2, 5, 7)], unreadable_images=1)
    assert statements.notes(run) == ["3 steps without metrics: 3–4, 6.", "1 image missing or malformed, and not shown."]


def test_values_that_are_not_finite_are_named() -> None:
    lines = [trained(1), trained(2) | {"reward/mean": None}, trained(3) | {"reward/mean": None, "actor/loss": None}]
    assert statements.notes(Run("r", lines=lines)) == [
        "reward/mean is not a finite number at step 2–3.",
        "actor/loss is not a finite number at step 3.",
    ]


def test_samples_that_could_not_be_scored_are_counted() -> None:
    first = trained(1) | {"reward/unscored": 1, "val/reward/mean": 0.5, "val/reward/unscored": 1}
    lines = [first, trained(2), trained(3) | {"reward/unscored": 2}, trained(4) | {"reward/unscored": 9}]
    assert statements.notes(Run("r", lines=lines)) == [
        "12 training samples could not be scored, at step 1, 3–4.",
        "1 held-out sample could not be scored, at the evaluation of step 1.",
    ]
    warned = statements.warnings(Run("r", events=[Event(event="warning", reason="SamplesNotScored", message="why")]))
    assert warned[0].explanation.startswith("A scorer gave no score for some samples")


def test_warnings_are_grouped_by_reason_with_the_collapse_first() -> None:
    events = [
        Event(event="warning", message="no report: disk full"),
        Event(event="warning", reason="RewardSlow", step=2, message="the scorer is slow"),
        Event(event="warning", reason="SamplesCollapsed", step=3, message="std 0.0001"),
        Event(event="warning", reason="SamplesCollapsed", step=4, message="std 0.0000"),
        Event(event="warning", reason="SamplesCollapsed", step=4, message="std 0.0000"),
        Event(event="phase", message="not a warning"),
    ]
    warned = statements.warnings(Run("r", events=events))
    assert [(statement.title, statement.messages) for statement in warned] == [
        ("Warning: SamplesCollapsed", ["Step 3: std 0.0001", "Step 4: std 0.0000"]),
        ("Warning", ["no report: disk full"]),
        ("Warning: RewardSlow", ["Step 2: the scorer is slow"]),
    ]
    assert warned[0].explanation.startswith("The samples of this run collapsed")
    assert {statement.explanation for statement in warned[1:]} == {""}


def test_a_warning_has_the_step_recorded_before_it() -> None:
    warning = Event(event="warning", reason="SamplesCollapsed", message="alike")
    events = [START, warning, Event(event="step", step=4), warning, START, warning]
    (statement,) = statements.warnings(Run("r", events=events))
    assert statement.messages == ["alike", "Step 4: alike"]


def test_a_wrong_weight_version_is_named() -> None:
    fine = [trained(1), trained(2)]
    assert statements.weight_versions(fine) == (
        True,
        "At every recorded step, the published weight version equals the step.",
    )
    statement = statements.weight_versions(
        [trained(1), trained(2) | {"weights/version": 1}, trained(3) | {"weights/version": None}]
    )
    assert statement == (False, "The published weight version differs from the step at step 2–3; see train.log.")


def test_phases_add_up_to_the_steps() -> None:
    line = {"timing_s/generate": 6.0, "timing_s/update": 2.0, "timing_s/sync": 1.0, "timing_s/step": 10.0}
    totals = statements.phase_totals(Run("r", lines=[trained(1, **line), evaluated(2, 0.1) | {"timing_s/eval": 90.0}]))
    assert [(total.label, total.value, total.note) for total in totals] == [
        ("generate", "6 s", "60%"),
        ("update", "2 s", "20%"),
        ("sync", "1 s", "10%"),
        ("other", "1 s", "10%"),
        ("evaluations", "1 min 30 s", "not part of the steps"),
    ]


def test_a_scorer_metric_that_equals_the_reward_is_left_out() -> None:
    lines = [trained(1, **{"reward/acc/mean": 0.5 + 1e-9, "reward/shape/mean": 0.4, "val/late/mean": 0.1})]
    assert scorer_metrics(lines) == ["reward/shape/mean", "reward/late/mean"]


def test_the_largest_difference_of_log_probabilities_is_given_with_its_step() -> None:
    lines = [{"step": 1.0, "rollout_corr/mean_abs_diff": None}, {"step": 2.0, "rollout_corr/mean_abs_diff": 0.5}]
    assert statements.agreement(lines) == "The largest mean difference is 0.5, at step 2."
    assert statements.agreement([{"step": 1, "actor/margin": 0.1}]) is None


def test_generation_that_overlaps_the_update_counts_by_the_wait_for_it() -> None:
    steps = [{"step": 1.0, **{f"timing_s/{phase}": 1.0 for phase in ("generate", "update", "sync")}}]
    assert statements.phases(steps) == ("generate", "update", "sync")
    overlapping = Run("run", [{**steps[0], "timing_s/wait": 0.5, "timing_s/step": 2.5}])
    assert [(total.label, total.value) for total in statements.phase_totals(overlapping)] == [
        ("wait", "0.5 s"),
        ("update", "1 s"),
        ("sync", "1 s"),
        ("other", "0 s"),
    ]
