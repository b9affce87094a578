"""Samples that no scorer could score: left out of training and of all means, counted, and limited to a share."""

import json
import math
from pathlib import Path

import pytest
import torch
from typing_extensions import override
from verl import DataProto

from tests.ml.trainer.recorded_runs import events
from tests.ml.trainer.runs_in_memory import AHEAD, Trained, trainer
from verl_omni.reward_loop.scorer_results import ScoringFailure, TooManyUnscored
from verl_omni.samples import GENERATED, Sample
from verl_omni.trainer.metrics import step_metrics
from verl_omni.trainer.metrics.run_warnings import RunWarnings
from verl_omni.trainer.run.checkpoints import path_of
from verl_omni.trainer.run.run_folder import RunFolder, ShownSample, write_samples
from verl_omni.utils.columns import objects

NAN = math.nan
SHARE = "reward.max_failed_share"


class Judged(Trained):
    """Scorers that always fail for the same samples of prompt 3: the first, or both."""

    def __init__(self, *, both: bool = False, required: bool = True) -> None:
        super().__init__()
        self.both = both
        self.required = required
        self.advantages: list[list[float]] = []

    @override
    def generate_sequences(self, prompts: DataProto) -> DataProto:
        output = super().generate_sequences(prompts)
        failures: list[ScoringFailure | None] = []
        for row, info in enumerate(prompts.non_tensor_batch["extra_info"]):
            fails = info["prompt"] == "3" and (self.both or row % 2 == 0)
            failures.append(ScoringFailure("scorer judge failed: no rating", self.required) if fails else None)
            if fails:
                output.batch["rm_scores"][row] = NAN
        output.non_tensor_batch[GENERATED] = objects(
            [Sample(failure=failure, version=self.served) for failure in failures]
        )
        return output

    @override
    def update_actor(self, data: DataProto) -> DataProto:
        self.advantages.append(data.batch["advantages"].tolist())
        return super().update_actor(data)


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [0, 1])
def test_a_run_goes_on_without_samples_that_cannot_be_scored_and_so_does_a_resumed_one(
    tmp_path: Path, ahead: int
) -> None:
    unbroken = Judged()
    first = Judged()
    second = Judged()
    trainer(tmp_path / "whole", unbroken, 7, f"{AHEAD}={ahead}").fit(None)
    trainer(tmp_path / "run", first, 3, f"{AHEAD}={ahead}").fit(None)
    trainer(tmp_path / "run", second, 7, f"{AHEAD}={ahead}").fit(path_of(tmp_path / "run" / "checkpoints", 3))
    assert first.advantages + second.advantages == unbroken.advantages
    prompts = [int(prompt) for update in unbroken.updates for prompt in update]
    advantages = [value for update in unbroken.advantages for value in update]
    of_three = [value for prompt, value in zip(prompts, advantages, strict=True) if prompt == 3]
    of_others = [value for prompt, value in zip(prompts, advantages, strict=True) if prompt != 3]
    assert of_three == [0.0] * len(of_three), "the sample that failed, and the one that is left with none to compare"
    assert all(value != 0 and math.isfinite(value) for value in of_others) and of_others
    text = (tmp_path / "run" / "metrics.jsonl").read_text()
    assert "NaN" not in text and "null" not in text
    steps = events(tmp_path / "whole", "step")
    counted = [step.get("reward/unscored", 0) for step in steps]
    assert sum(counted) == len(of_three) // 2 and steps[-1]["unscored"] == sum(counted)
    (warning,) = events(tmp_path / "whole", "warning")
    assert warning["reason"] == "SamplesNotScored"
    assert warning["message"].startswith("prompt '3': scorer judge failed: no rating. ")


@pytest.mark.slow
def test_a_prompt_whose_samples_all_fail_is_not_trained_on(tmp_path: Path) -> None:
    scored = Judged(both=True)
    trainer(tmp_path, scored, 7, f"{AHEAD}=0", f"{SHARE}=0.5").fit(None)
    places = zip(scored.updates, scored.advantages, strict=True)
    rows = [(int(prompt), value) for update in places for prompt, value in zip(*update, strict=True)]
    assert all((value == 0) == (prompt == 3) for prompt, value in rows)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scorers", "share", "message"),
    [
        (Judged(both=True), 0.25, "2 samples have no score, and reward.max_failed_share allows 1 in this batch"),
        (Judged(), 0.0, "1 sample has no score, and reward.max_failed_share allows 0 in this batch"),
    ],
)
def test_above_the_share_the_run_stops_with_the_first_error(
    tmp_path: Path, scorers: Judged, share: float, message: str
) -> None:
    with pytest.raises(TooManyUnscored, match=message) as stopped:
        trainer(tmp_path, scorers, 7, f"{AHEAD}=0", f"{SHARE}={share}").fit(None)
    assert str(stopped.value).startswith("prompt '3': scorer judge failed: no rating. ")


@pytest.mark.slow
def test_a_batch_without_any_reward_stops_the_run_also_for_an_optional_scorer(tmp_path: Path) -> None:
    class Down(Judged):
        @override
        def generate_sequences(self, prompts: DataProto) -> DataProto:
            output = super().generate_sequences(prompts)
            output.batch["rm_scores"][:] = NAN
            failure = ScoringFailure("scorer judge failed: no connection", self.required)
            output.non_tensor_batch[GENERATED] = objects([Sample(failure=failure)] * len(prompts))
            return output

    for required in (True, False):
        with pytest.raises(TooManyUnscored, match=r"no connection\. 4 samples have no score, .* allows 3 in"):
            trainer(tmp_path / str(required), Down(required=required), 7, f"{AHEAD}=0", f"{SHARE}=1.0").fit(None)


def test_metrics_are_over_the_samples_that_have_them() -> None:
    scores = torch.tensor([-1.0, NAN, -3.0, NAN])
    extras = {"bonus": [None, None, 1.0, 3.0], "acc": [1, True, NAN, math.inf], "note": ["x", 1, None, None]}
    assert step_metrics.rewards(scores, {**extras, "none": [None] * 4, "all": [1, 2, 3, 4]}) == {
        "reward/mean": -2.0,
        "reward/std": pytest.approx(2**0.5),
        "reward/unscored": 2,
        "reward/bonus/mean": 2.0,
        "reward/bonus/std": pytest.approx(2**0.5),
        "reward/bonus/n": 2,
        "reward/acc/mean": 1.0,
        "reward/acc/std": 0.0,
        "reward/acc/n": 2,
        "reward/all/mean": 2.5,
        "reward/all/std": pytest.approx((5 / 3) ** 0.5),
    }
    assert step_metrics.evaluation(scores, extras) == {
        "val/reward/mean": -2.0,
        "val/reward/stderr": pytest.approx(1.0),
        "val/reward/unscored": 2,
        "val/n": 2,
        "val/bonus/mean": 2.0,
        "val/bonus/stderr": pytest.approx(1.0),
        "val/bonus/n": 2,
        "val/acc/mean": 1.0,
        "val/acc/stderr": 0.0,
        "val/acc/n": 2,
    }
    assert step_metrics.evaluation(torch.tensor([1.0, 3.0]), {"reward": [5.0, 9.0]}) == {
        "val/reward/mean": 2.0,
        "val/reward/stderr": pytest.approx(1.0),
        "val/n": 2,
        "val/reward/reward/mean": 7.0,
        "val/reward/reward/stderr": pytest.approx(2.0),
    }, "a scorer's field of that name does not replace the reward"
    assert step_metrics.rewards(torch.tensor([1.0]), {}) == {"reward/mean": 1.0}, "of one, there is no deviation"
    spread = step_metrics.reward_spread(torch.tensor([0.0, 2.0, NAN, 9.0]), ["a", "a", "b", "b"])
    assert list(spread.values()) == [1.0, 0], "prompt b has one reward"


def test_a_field_that_is_not_finite_is_named_once(tmp_path: Path) -> None:
    warnings = RunWarnings(RunFolder(tmp_path))
    for step in (1, 2):
        warnings.observe_scores(step, [], {"loss": [NAN, 1.0], "note": ["nan", "x"], "fine": [None, 1.0]})
    (warning,) = events(tmp_path, "warning")
    assert (warning["reason"], warning["step"]) == ("MetricNotFinite", 1)
    assert warning["message"].startswith("the scorers' field loss is not a finite number for 1 samples")


def test_a_scorer_outside_of_the_reward_hides_no_failure_of_the_reward(tmp_path: Path) -> None:
    warnings = RunWarnings(RunFolder(tmp_path))
    outside = ScoringFailure("reward 'taste' failed: no model", required=False, has_reward=True)
    inside = ScoringFailure("reward 'judge' failed: no rating")
    for step, failures in ((0, [outside]), (1, [outside, inside]), (2, [inside])):
        warnings.observe_scores(step, failures, {})
    first, second = events(tmp_path, "warning")
    assert (first["step"], second["step"]) == (0, 1)
    assert first["message"].startswith(outside.text) and "not trained on" not in first["message"]
    assert second["message"].startswith(inside.text) and "reward/unscored" in second["message"]


def test_samples_without_a_score_are_shown_without_one(tmp_path: Path) -> None:
    image = torch.zeros(3, 2, 2, dtype=torch.uint8)
    RunFolder(tmp_path).samples(1, [ShownSample("a", 1, None, image)], fps=8)
    write_samples(tmp_path / "rollouts", 1, [ShownSample("a", 1, None, image)], None, 8)
    (shown,) = json.loads((tmp_path / "samples" / "step_000001" / "index.json").read_text())
    written = json.loads((tmp_path / "rollouts" / "1.jsonl").read_text())
    assert shown["score"] is written["score"] is None
