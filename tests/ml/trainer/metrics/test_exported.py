"""What the training loop exports, with an agent loop and workers that answer at once."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.ml.trainer.recorded_runs import Recorder
from tests.ml.trainer.test_loop import trainer
from verl_omni.samples import SAMPLE, TrainingBatch
from verl_omni.trainer.metrics import exported
from verl_omni.trainer.metrics.exported import TrainerMetrics
from verl_omni.utils.metrics.exported_metrics import (
    OF_A_JUDGE,
    OF_A_STORE,
    OF_STANDALONE_REPLICAS,
    TRAINER,
)


def run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Recorder, Any]:
    recorder = Recorder()
    monkeypatch.setattr(exported, "MetricsWriter", lambda: recorder)
    running = trainer(folder, "actor_rollout_ref.rollout.pipeline.output_type=latent")
    running.fit(None)
    return recorder, running


@pytest.mark.slow  # composes all settings
def test_a_run_of_two_steps_exports_every_metric_of_the_trainer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder, running = run(tmp_path, monkeypatch)
    values = recorder.values
    lines = running.folder.metrics()
    of_others = (*OF_A_STORE, *OF_STANDALONE_REPLICAS, *OF_A_JUDGE)
    expected = {metric.name for metric in TRAINER if metric not in of_others}
    assert {name.partition("/")[0] for name in values} == expected
    assert values["omni_step"] == values["omni_steps"] == 2
    assert recorder.published == [0, 1, 2], "each version, from the initial one on"
    assert values["omni_samples_generated_total"] == 2 * 4
    assert values["omni_samples_trained_total"] == 2 * 4
    assert values["omni_optimizer_steps_total"] == 2
    assert values["omni_reward_mean"] == lines[-1]["reward/mean"] == 1.5
    assert values["omni_validation_reward_mean"] == lines[-1]["val/reward/mean"]
    for phase in ("generate", "update", "sync", "eval"):
        spent = sum(line.get(f"timing_s/{phase}", 0) for line in lines)
        assert values[f"omni_phase_seconds_total/{phase}"] == pytest.approx(spent)
        assert spent > 0


@pytest.mark.slow  # composes all settings
def test_a_collapse_is_exported_while_it_lasts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from verl_omni.trainer.metrics import collapse

    recorder, running = run(tmp_path, monkeypatch)
    assert recorder.values["omni_samples_collapsed"] == 0
    monkeypatch.setattr(collapse, "observe", lambda state, line: (collapse.CollapseState(collapsed=True), None))
    running.loop.recorder.record({"step": 3})
    assert recorder.values["omni_samples_collapsed"] == 1


def test_skipped_optimizer_steps_are_counted() -> None:
    recorder = Recorder()
    for skipped in (0.0, 2.0, 1.0):
        TrainerMetrics(recorder).step({"step": 1, "actor/skipped_steps": skipped}, collapsed=False)
    assert recorder.values["omni_optimizer_steps_skipped_total"] == 3


def test_samples_of_a_batch_are_counted_once() -> None:
    pairs = {"preferred": torch.ones(2), SAMPLE: torch.tensor([[0, 3], [0, 2]])}
    assert TrainingBatch(pairs, (), {}).samples == 3
    assert TrainingBatch({"advantages": torch.ones(4)}, (), {}).samples == 4
