"""What the report says, in words: gains, endings, gaps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_omni.trainer.report import words
from verl_omni.trainer.report.load import Event, Run, load
from verl_omni.trainer.report.plots import extras
from verl_omni.trainer.report.write import spread_out


def evaluated(step: int, mean: float, stderr: float = 0.02, **more: float) -> dict[str, float | None]:
    return {"step": step, "val/reward/mean": mean, "val/reward/stderr": stderr, **more}


def trained(step: int, **more: float | None) -> dict[str, float | None]:
    return {"step": step, "weights/version": step, "reward/mean": 0.5, **more}


def test_a_gain_is_told_in_standard_errors() -> None:
    run = Run("r", lines=[evaluated(0, 0.25, 0.03), evaluated(40, 0.75, 0.04)])
    assert (
        words.summary(run) == "The held-out reward went from 0.250 to 0.750 in 40 steps: +0.500, 10.0 standard errors."
    )


def test_a_gain_that_may_be_chance_is_called_so() -> None:
    run = Run("r", lines=[evaluated(0, 0.5), evaluated(6, 0.48)])
    assert words.summary(run).endswith("in 6 steps: -0.020, 0.7 standard errors, which may be chance.")


def test_one_evaluation_is_no_gain() -> None:
    run = Run("r", lines=[evaluated(0, 0.5)])
    assert words.summary(run) == "0 training steps; held-out reward 0.500 at step 0, evaluated once."


def test_right_pictures_are_a_share() -> None:
    lines = [evaluated(0, 0.5, **{"val/correct/mean": 0.6}), evaluated(6, 0.5, **{"val/correct/mean": 0.725})]
    assert words.summary(Run("r", lines=lines)).endswith("Right pictures: 60.0% before, 72.5% after.")


START = Event(event="start", total_steps=9)


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([START], "At step 3 of 9 it was still running, or had been ended from outside."),
        ([START, Event(event="error", message="no memory")], "It failed at step 3 of 9: no memory"),
        ([START, Event(event="stopped")], "It was stopped at step 3 of 9; the same command goes on"),
        ([START, Event(event="error", message="old"), START], "At step 3 of 9 it was still running"),
        ([Event(event="start", total_steps=3)], "It made all its 3 steps."),
        ([], "At step 3 it was still running"),
    ],
)
def test_how_a_run_ended(events: list[Event], expected: str) -> None:
    assert words.ending(Run("r", lines=[trained(step) for step in (1, 2, 3)], events=events)).startswith(expected)


def test_a_folder_without_a_run_says_so() -> None:
    assert words.ending(Run("r")) == "Nothing was recorded in this folder."
    assert words.notes(Run("r")) == ["No training step was finished."]
    assert words.summary(Run("r")) == "0 training steps; nothing was evaluated on held-out prompts."
    assert words.facts(Run("r")) == []


def test_a_resumed_run_says_where(begun: Callable[..., Any]) -> None:
    begun(last=3)
    notes = words.notes(load(begun(last=4, resumed_from=2).path))
    assert notes == ["It was resumed from step 2; of steps that were made again, the last ones are shown."]


def test_steps_without_a_record_are_named() -> None:
    run = Run("r", lines=[trained(step) for step in (1, 2, 5, 7)], unreadable_pictures=1)
    assert words.notes(run) == ["3 steps without a record: 3–4, 6.", "1 picture could not be read and is left out."]


def test_a_wrong_weight_version_is_told() -> None:
    fine = [trained(1), trained(2)]
    assert words.weights(fine) == (True, "In every step the published weight version equals the step.")
    good, text = words.weights(
        [trained(1), trained(2) | {"weights/version": 1}, trained(3) | {"weights/version": None}]
    )
    assert not good
    assert text.startswith("The published weight version is not the step at step 2–3")


@given(st.sets(st.integers(0, 60)).map(sorted))
def test_ranges_lose_nothing(steps: list[int]) -> None:
    found: list[int] = []
    for part in filter(None, words.ranges(steps).split(", ")):
        ends = [int(end) for end in part.split("–")]
        found += range(ends[0], ends[-1] + 1)
    assert found == steps


@given(st.floats() | st.none(), st.integers(0, 4))
def test_no_number_shows_a_negative_zero(value: float | None, digits: int) -> None:
    text = words.fixed(value, digits)
    assert text == "–" or float(text) != 0 or not text.startswith("-")


@given(st.sets(st.integers(0, 1000)).map(sorted), st.integers(2, 6))
def test_columns_are_spread_from_the_first_to_the_last(steps: list[int], most: int) -> None:
    found = spread_out(steps, most)
    assert len(found) == min(len(steps), most)
    assert found == sorted(set(found))
    assert set(found) <= set(steps)
    assert not steps or (found[0], found[-1]) == (steps[0], steps[-1])


def test_phases_add_up_to_the_steps() -> None:
    line = {"timing_s/generate": 6.0, "timing_s/update": 2.0, "timing_s/sync": 1.0, "timing_s/step": 10.0}
    totals = words.phase_totals(Run("r", lines=[trained(1, **line), evaluated(2, 0.1) | {"timing_s/eval": 90.0}]))
    assert [(total.label, total.value, total.note) for total in totals] == [
        ("generate", "6 s", "60%"),
        ("update", "2 s", "20%"),
        ("sync", "1 s", "10%"),
        ("other", "1 s", "10%"),
        ("evaluations", "1 min 30 s", "beside the steps"),
    ]


def test_an_extra_that_is_the_reward_itself_is_left_out() -> None:
    lines = [trained(1, **{"reward/acc/mean": 0.5 + 1e-9, "reward/shape/mean": 0.4, "val/late/mean": 0.1})]
    assert extras(lines) == ["reward/shape/mean", "reward/late/mean"]


@pytest.mark.parametrize(
    ("seconds", "expected"), [(0.25, "0.25 s"), (59, "59 s"), (61, "1 min 1 s"), (7300, "2 h 1 min")]
)
def test_durations_have_human_units(seconds: float, expected: str) -> None:
    assert words.duration(seconds) == expected


def test_an_algorithm_without_likelihoods_has_nothing_to_agree_about() -> None:
    assert words.agreement([{"step": 1, "actor/margin": 0.1}]).startswith("Does not apply")
    assert words.agreement([]) == words.agreement([{"step": 1, "rollout_corr/mean_abs_diff": None}]) == "Not recorded."
    assert "0.5, at step 2" in words.agreement([{"step": 2, "rollout_corr/mean_abs_diff": 0.5}])
