"""The operator's parser accepts every event that the trainer posts, byte for byte as it is posted."""

import re
from pathlib import Path
from typing import Any

import httpx2
from omegaconf import OmegaConf

from omni_operator.status.observed import trainer_report
from omni_operator.status.observed.trainer_report import WARNING_REASONS, ReportEvent, parse_event


def test_every_event_of_the_trainer_is_accepted(tmp_path: Path) -> None:
    import numpy as np
    import torch

    from verl_omni.trainer.metrics.run_warnings import NOT_FINITE, NOT_SCORED
    from verl_omni.trainer.replicas.replica_reports import JoinTimes, JudgeReports, RunReports
    from verl_omni.trainer.run.operator_reporter import OperatorReporter
    from verl_omni.trainer.run.run_folder import RunFolder
    from verl_omni.utils.metrics.metrics_writer import MetricsWriter

    posted: list[bytes] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        posted.append(request.content)
        assert request.headers["Content-Type"] == "application/json"
        assert "Content-Encoding" not in request.headers
        return httpx2.Response(200, json={})

    token = tmp_path / "token"
    token.write_text("x")
    metrics: dict[str, Any] = {
        "step": 3,
        "reward/mean": torch.tensor(0.5),
        "val/reward/mean": np.float32(0.25),
        "reward/std": float("nan"),
        "weights/version": 3,
        "weights/min_replica_version": 3,
        "weights/max_replica_version": 3,
        "timing_s/step": 4.25,
        "timing_s/sync": 0.1,
        "images_per_s": 12.5,
        "actor/loss": float("inf"),
    }
    with OperatorReporter("http://operator/v1/reports", token, 2, transport=httpx2.MockTransport(answer)) as reporter:
        folder = RunFolder(tmp_path / ("long" * 40) / "run", reporter.post)
        reports = RunReports(folder, MetricsWriter(), reporter.note)
        reports.queued(96)
        reports.versions({"10.0.0.7": 3})
        of_judge = JudgeReports(folder, MetricsWriter(), reporter.note)
        of_judge.queued(24)
        of_judge.queued(8)
        of_judge.versions({"10.0.0.9": 0})
        config = OmegaConf.create({"trainer": {"total_training_steps": 10}})
        folder.start(config, resumed_from=None)
        reports.joined(2, 3, JoinTimes(2.0, 21.5, 4.25))
        folder.event("phase", text="starting Ray: naïve \x1b[0m")
        folder.step(metrics, eta_s=28.5, samples=96, unscored=5)
        folder.step({"step": 4, "reward/mean": float("nan")}, eta_s=None)
        folder.event("checkpoint", step=4, path=str(tmp_path / ("long" * 50) / "step_000004"))
        folder.event("adapter", step=4, path=str(tmp_path / "adapters" / "step_000004"))
        folder.event("output", step=4, url="s3://bucket/" + "long/" * 100)
        for reason in (
            "SamplesCollapsed",
            "CheckpointsSetAside",
            "ResumedWithChanges",
            "ReportNotWritten",
            "OutputNotSent",
            NOT_SCORED,
            NOT_FINITE,
        ):
            folder.event("warning", reason=reason, message="text " * 500, step=4)
        folder.event("error", message="text " * 5000, kind="ValueError", reason="WeightSyncFailed")
        folder.event("stopped", message="SIGTERM", kind="Interrupted")
        folder.event("done", step=10, report="/runs/report.html")
        reporter.post({"event": "heartbeat"})
    parsed = [parse_event(body) for body in posted]
    assert len(parsed) == 19
    assert {event.reason for event in parsed if event.event == "warning"} <= WARNING_REASONS
    assert [event.queued for event in parsed if event.queued is not None] == [96], "once, with the first event"
    assert [event.judge_queued for event in parsed if event.judge_queued is not None] == [24], "the largest"
    assert [event.replica_versions for event in parsed if event.replica_versions is not None] == [{"10.0.0.7": 3}]
    assert [event.judge_versions for event in parsed if event.judge_versions is not None] == [{"10.0.0.9": 0}]
    step = next(event for event in parsed if event.event == "step")
    assert step.model_dump(exclude_none=True) == {
        "attempt": 2,
        "event": "step",
        "step": 3,
        "reward_mean": 0.5,
        "validation_reward": 0.25,
        "version": 3,
        "min_version": 3,
        "max_version": 3,
        "images_per_second": 12.5,
        "sync_seconds": 0.1,
        "step_seconds": 4.25,
        "eta_s": 28.5,
        "samples": 96,
        "unscored": 5,
    }
    used = {event.event for event in parsed}
    texts = [path.read_text() for path in (Path(__file__).parents[2] / "verl_omni" / "trainer").rglob("*.py")]
    written = {name for text in texts for name in re.findall(r"(?:[._]event\(|\"event\": )\"(\w+)\"", text)}
    assert written <= used, "an event of the trainer is missing in this test"
    assert used == set(ReportEvent.model_fields["event"].annotation.__args__)


def test_the_reasons_that_the_trainer_names_are_known() -> None:
    from verl_omni.trainer.main_diffusion import _reason
    from verl_omni.trainer.output.uploads import OutputNotSent

    errors = [ValueError(), type("OutOfMemoryError", (Exception,), {})(), type("WeightSyncError", (Exception,), {})()]
    errors.append(OutputNotSent())
    named = {_reason(error) for error in errors}
    assert named == {"ApplicationError", "OutOfMemory", "WeightSyncFailed", "OutputNotSent"}
    assert named <= set(trainer_report.TRAINER_REASONS)
