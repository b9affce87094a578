"""The metrics of a step reach verl's trackers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from verl_omni.trainer import main_diffusion, settings
from verl_omni.trainer.run_folder import RunFolder

REQUIRED = ["data.train_files=t", "actor_rollout_ref.model.path=m", "trainer.total_training_steps=1"]


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch) -> Any:
    for variable in ("TENSORBOARD_DIR", "VERL_FILE_LOGGER_PATH", "WANDB_DIR"):
        monkeypatch.setenv(variable, "")  # so that what the trainer sets is undone
        monkeypatch.delenv(variable)
    return settings.load([*REQUIRED, "trainer.logger=[console,tensorboard]"])


def test_the_console_and_tensorboard_get_every_metric(
    config: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from verl_omni.trainer.loop import DiffusionTrainer

    tracking = main_diffusion.open_tracking(config, tmp_path)
    trainer = DiffusionTrainer(
        config, None, RunFolder(tmp_path), [], None, stop_requested=lambda: False, tracking=tracking
    )
    for step in (1, 2):
        trainer._record({"step": step, "weights/version": step, "reward/mean": 0.25 * step})
    tracking.finish()
    assert "step:2 - " in capsys.readouterr().out
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("reward/mean")] == [(1, 0.25), (2, 0.5)]


def test_no_tracker_is_opened_unless_one_is_named(tmp_path: Path) -> None:
    assert main_diffusion.open_tracking(settings.load(REQUIRED), tmp_path) is None
