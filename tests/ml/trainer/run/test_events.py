"""Lines of the trainer's output, one per event."""

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from verl_omni.trainer.run.event_text import format_event
from verl_omni.trainer.run.run_folder import RunFolder


@pytest.mark.parametrize(
    ("event", "line"),
    [
        ({"event": "phase", "text": "starting Ray"}, "starting Ray"),
        ({"event": "checkpoint", "step": 4, "path": "/runs/x/step_4"}, "saved step 4 in /runs/x/step_4"),
        ({"event": "done", "step": 9, "report": "/r.html"}, "done after step 9; the report is /r.html"),
        ({"event": "error", "message": "no room", "kind": "OSError", "reason": "x"}, "error: no room"),
        ({"event": "stopped", "message": "stopped after step 2", "kind": "I"}, "stopped: stopped after step 2"),
        ({"event": "warning", "message": "no report"}, "warning: no report"),
    ],
)
def test_each_event_has_a_line(event: dict[str, Any], line: str) -> None:
    assert format_event(event) == line


def test_start_steps_and_resume_have_a_line(tmp_path: Path) -> None:
    lines: list[str] = []
    folder = RunFolder(tmp_path, lambda event: lines.append(format_event(event)))
    config = OmegaConf.create({"trainer": {"total_training_steps": 9}})
    folder.start(config, resumed_from=None)
    folder.step({"step": 1, "weights/version": 1, "reward/mean": 0.25, "timing_s/step": 2.0, "other": 1.0})
    folder.step({"step": 2, "weights/version": 2, "reward/mean": float("nan"), "val/reward/mean": 0.5})
    folder.start(config, resumed_from=2)
    assert lines == [
        "training 9 steps",
        "step 1: reward 0.25, weights 1, seconds 2.0",
        "step 2: held-out reward 0.5, weights 2",
        "resuming after step 2 of 9",
    ]
