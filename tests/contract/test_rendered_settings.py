"""Where the two packages meet: what the control side renders, the trainer loads."""

from __future__ import annotations

from pathlib import Path

import pytest

from omni_operator.api.job import SCORERS
from omni_operator.api.load import load
from omni_operator.plan.overrides import overrides
from verl_omni.reward_loop import rewards
from verl_omni.trainer import settings

EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "examples").glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_the_trainer_accepts_what_is_rendered(path: Path) -> None:
    job = load(path)
    config = settings.load(overrides(job, folder=path.parent, run="runs/x"))
    assert config.trainer.total_training_steps == job.spec.trainer.steps
    assert config.actor_rollout_ref.rollout.n == job.spec.rollout.samples_per_prompt
    assert Path(config.data.train_files).is_file()


def test_both_sides_know_the_same_scorers() -> None:
    assert tuple(SCORERS) == tuple(rewards.SCORERS)


def test_unknown_settings_are_refused_with_the_nearest_name() -> None:
    with pytest.raises(settings.SettingsError, match=r"did you mean trainer\.total_training_steps"):
        settings.load(["trainer.total_training_step=3"])
    with pytest.raises(settings.SettingsError, match=r"actor_rollout_ref\.model\.path: must be given"):
        settings.load([])
