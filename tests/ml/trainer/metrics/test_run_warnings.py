"""A warning is one event of the run folder, also if the run goes on after it and is resumed."""

from __future__ import annotations

from pathlib import Path

import pytest

from verl_omni.trainer.metrics import collapse, degradation, policy_drift, run_warnings
from verl_omni.trainer.metrics.run_warnings import RunWarnings
from verl_omni.trainer.report.run_data import parse_events
from verl_omni.trainer.report.statements import EXPLANATIONS
from verl_omni.trainer.run.run_folder import RunFolder

Line = dict[str, float | None]
ONE_SIDED: Line = {"actor/excluded_at_start_positive": 0.0, "actor/excluded_at_start_negative": 0.4}
# Reason -> the step of the warning, and the metrics of all steps.
COURSES: dict[str, tuple[int, list[Line]]] = {
    collapse.REASON: (2, [{collapse.IMAGES: diversity} for diversity in (0.08, 0.01, 0.01)]),
    run_warnings.CONSTANT_REWARD: (5, [{collapse.REWARD_SPREAD: 0.0, "reward/mean": 0.5}] * 8),
    run_warnings.ONE_SIDED: (1, [ONE_SIDED] * 3),
    policy_drift.REASON: (5, [{"actor/kl": 0.7}] * 8),
    degradation.REASON: (7, [{"images/dark": 0.1}] * 5 + [{"images/dark": 0.9}] * 8),
}


@pytest.mark.parametrize("before", [True, False], ids=["resumed before it", "resumed after it"])
@pytest.mark.parametrize("reason", COURSES)
def test_the_run_folder_gets_the_warning_once_wherever_the_run_is_resumed(
    reason: str, before: bool, tmp_path: Path
) -> None:
    warned, lines = COURSES[reason]
    cut = warned - 1 if before else len(lines) - 1
    for part in (lines[:cut], lines[cut:]):
        observer = RunWarnings(RunFolder(tmp_path))
        observer.restore()
        for line in part:
            step = len(observer.folder.metrics()) + 1
            observer.observe(step, observer.folder.step({"step": step, **line}))
    events = parse_events((tmp_path / "progress.jsonl").read_text())
    warnings = [(event.reason, event.step) for event in events if event.event == "warning"]
    assert warnings == [(reason, warned)]
    assert reason in EXPLANATIONS or reason == run_warnings.ONE_SIDED, "its text says what to do"
