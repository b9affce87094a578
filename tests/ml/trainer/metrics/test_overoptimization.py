"""A reward that is exploited: it rises while a held-out scorer falls; the warning, and the end of the run."""

from pathlib import Path
from typing import Any

import pytest

from tests.ml import smallest_job
from tests.ml.trainer.recorded_runs import events
from tests.ml.trainer.test_loop import AnsweringAgentLoop, trainer
from verl_omni.trainer.metrics import step_metrics
from verl_omni.trainer.metrics.overoptimization import HeldOutState, observe
from verl_omni.trainer.run.checkpoints import path_of
from verl_omni.trainer.settings import reward_settings

EVALUATES = "{jpeg: {}, taste: {name: brightness, use: evaluation}}"


def observed(*evaluations: tuple[float, float], error: float = 0.1) -> tuple[HeldOutState, list[int]]:
    """The state after evaluations of (trained reward, held-out score), and the steps with a warning."""
    state = HeldOutState()
    warned = []
    for step, (reward, score) in enumerate(evaluations):
        line = {"val/reward/mean": reward, "val/reward/taste/mean": score, "step": float(step)}
        errors = {"val/reward/stderr": error, "val/reward/taste/stderr": error}
        state, message = observe(state, "taste", line | errors)
        state, _ = observe(state, "taste", {"reward/mean": reward})  # a step without an evaluation
        if message is not None:
            warned.append(step)
    return state, warned


def test_a_reward_that_rises_while_the_scorer_falls_is_reported_once_in_a_row() -> None:
    # First both rise: the comparison is with the best score, not with the first.
    state, warned = observed((0, 5), (1, 6), (2, 5.5), (3, 5.4))
    assert (warned, state.falls, state.step) == ([2], 2, 1)
    state, warned = observed((0, 5), (1, 4), (2, 5), (3, 4))
    assert (warned, state.falls) == ([1, 3], 1), "it had recovered"


@pytest.mark.parametrize(
    "evaluations",
    [
        [(0, 5), (1, 5.2), (2, 5.4)],  # both rise
        [(2, 5), (1, 4)],  # both fall
        [(1, 5), (1.1, 4)],  # the reward is the same, within its error
        [(1, 5), (2, 4.9)],  # the score is the same, within its error
    ],
)
def test_other_courses_are_no_reason_to_warn(evaluations: list[tuple[float, float]]) -> None:
    assert observed(*evaluations)[1] == []


def test_without_standard_errors_there_is_no_verdict() -> None:
    state, message = observe(HeldOutState(), "taste", {"val/reward/mean": 1.0, "val/reward/taste/mean": 2.0})
    assert (state, message) == (HeldOutState(), None)


def test_the_score_of_each_scorer_has_a_standard_error_in_evaluations() -> None:
    import torch

    extras = {"reward/taste": [1.0, 3.0, None], "reward/taste/parts": [1, 2, 3]}
    metrics = step_metrics.evaluation(torch.tensor([0.0, 1.0, 2.0]), extras)
    assert metrics["val/reward/taste/mean"] == 2.0
    assert metrics["val/reward/taste/stderr"] == pytest.approx(1.0)
    assert metrics["val/reward/taste/parts/stderr"] == pytest.approx(1 / 3**0.5)


class Exploiting(AnsweringAgentLoop):
    """Evaluations whose reward rises from step to step, and whose held-out score falls from step 1 on."""

    def generate_sequences(self, prompts: Any) -> Any:
        samples = super().generate_sequences(prompts)
        if prompts.meta_info.get("validate"):
            step = prompts.meta_info["global_steps"]
            samples.batch["rm_scores"] += 100.0 * step
            samples.non_tensor_batch["reward/taste"] = samples.batch["rm_scores"][:, 0].numpy() * (
                -1 if step > 1 else 1
            )
            samples.meta_info["reward_extra_keys"] = ["reward/taste"]
        return samples


def run(folder: Path, *overrides: str, checkpoint: Path | None = None) -> list[dict[str, Any]]:
    """The events of a run of ten steps."""
    job = ["trainer.total_training_steps=10", "trainer.test_freq=1", "trainer.save_freq=0"]
    running = trainer(folder, *job, f"reward.reward_functions={EVALUATES}", *overrides)
    running.stack.agent_loop = Exploiting()
    running.stack.workers.load_checkpoint = lambda folder: None
    running.fit(checkpoint)
    return events(folder)


@pytest.mark.slow
def test_a_run_with_patience_ends_at_a_checkpoint_and_does_not_go_on_when_resumed(tmp_path: Path) -> None:
    patience = "reward.early_stopping_patience=2"
    run(tmp_path, patience)
    steps = events(tmp_path, "step")
    assert steps[-1]["step"] == 3, "falls at steps 2 and 3"
    assert steps[-1]["val/held_out_scores"] == {"taste": steps[-1]["val/reward/taste/mean"]}
    (warning,) = events(tmp_path, "warning")
    assert (warning["reason"], warning["step"]) == ("RewardOveroptimized", 2)
    assert "Since step 1, the trained reward" in warning["message"] and "scorer taste" in warning["message"]
    checkpoint = path_of(tmp_path / "checkpoints", 3)
    assert checkpoint.is_dir()
    assert max(event.get("step", 0) for event in run(tmp_path, patience, checkpoint=checkpoint)) == 3
    assert max(event.get("step", 0) for event in run(tmp_path / "without")) == 10
    assert [event["reason"] for event in events(tmp_path / "without", "warning")] == ["RewardOveroptimized"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            [f"reward.reward_functions={EVALUATES}"],
            "reward.reward_functions.taste.use: evaluation needs held-out prompts",
        ),
        (
            ["reward.reward_functions={jpeg: {}, color: {}}", "reward.early_stopping_patience=1"],
            "reward.early_stopping_patience: is not read without a scorer with use=evaluation",
        ),
    ],
)
def test_what_would_have_no_effect_is_refused(overrides: list[str], message: str) -> None:
    valid = smallest_job.load(f"reward.reward_functions={EVALUATES}", "data.val_files=v")
    assert list(reward_settings.evaluation_problems(valid)) == []
    (problem,) = reward_settings.evaluation_problems(smallest_job.load(*overrides))
    assert problem.startswith(message)


def test_patience_is_a_positive_number() -> None:
    message = smallest_job.refusal("reward.early_stopping_patience=0")
    assert message.startswith("reward.early_stopping_patience: must be positive")
    assert "early_stopping_patience" in smallest_job.refusal("reward.early_stopping_patience=soon")
