"""Reports of the trainer: progress, usage, stalls and weight versions in the status."""

from __future__ import annotations

from typing import Any

import pytest

from omni_operator.api.status import Weights
from omni_operator.cluster.kinds import RAYJOBS

KEY = ("team-a", "red")
RAYJOB = (KEY[0], "red-a01")


async def test_reports_update_the_progress_with_few_writes(simulation: Any) -> None:
    await simulation.submit_running()
    simulation.cluster.counts()
    for step in range(1, 301):
        simulation.report(
            step=step, eta_s=300 - step, samples=8 * step, **{"weights/version": step, "reward/mean": 0.5}
        )
        await simulation.after(1)
    writes = simulation.cluster.counts()["apply_status", "diffusionrljobs"]
    assert 18 <= writes <= 24  # 300 seconds at 15 each, and the changes of conditions
    await simulation.after(60)
    status = simulation.status()
    assert (status.progress.global_step, status.weights.trainer_version, status.usage.samples) == (300, 300, 2400)
    assert status.progress.reward == 0.5
    assert 580 <= status.usage.accelerator_seconds <= 600


async def test_scores_of_held_out_scorers_stay_until_the_next_evaluation(simulation: Any) -> None:
    await simulation.submit_running()
    simulation.report(step=4, **{"val/reward/mean": 0.5, "val/held_out_scores": {"aesthetic": 5.5, "hps": 0.25}})
    simulation.report(step=5, **{"reward/mean": 0.5})
    simulation.report(step=8, **{"val/held_out_scores": {"aesthetic": None, "hps": 0.5}})
    await simulation.after(20)
    assert simulation.status().progress.held_out_scores == {"aesthetic": 5.5, "hps": 0.5}


async def test_the_startup_phase_is_the_message_until_training_starts(simulation: Any) -> None:
    await simulation.submit_running()
    for text in ("starting the rollout engine", "evaluating"):
        simulation.report("phase", text=text)
        await simulation.after(20)
        found = simulation.condition("Succeeded")
        assert (found.status, found.reason, found.message) == ("Unknown", "Running", text)
    simulation.report(step=1)
    await simulation.after(20)
    assert simulation.condition("Succeeded").message == ""


async def test_usage_adds_up_over_attempts_and_restarts(simulation: Any) -> None:
    await simulation.submit_running(backoffLimit=3)
    await simulation.after(100)
    simulation.report(step=1, samples=100)
    await simulation.after(20)
    simulation.start_operator()
    await simulation.settle()
    simulation.lose_head(1)
    await simulation.after(60)
    simulation.run(2)
    await simulation.after(100)
    simulation.report(attempt=2, step=2, samples=60)
    simulation.end(2)
    await simulation.settle()
    status = simulation.status()
    assert status.usage.samples == 160
    assert 2 * 210 <= status.usage.accelerator_seconds <= 2 * 225
    price = status.usage.accelerator_seconds_per_thousand_samples
    assert price == pytest.approx(status.usage.accelerator_seconds * 1000 / 160, abs=0.1)


async def test_a_new_attempt_begins_without_what_the_last_one_reported(simulation: Any) -> None:
    await simulation.submit_running(backoffLimit=1)
    versions = {"weights/version": 3, "weights/min_replica_version": 3, "weights/max_replica_version": 3}
    simulation.report(step=3, eta_s=70, samples=24, unscored=2, images_folder="samples/step_000002", **versions)
    simulation.report(step=3, **versions)
    simulation.report("warning", step=3, reason="SamplesCollapsed", message="alike")
    await simulation.after(20)
    before = simulation.status()
    assert (before.weights.trainer_version, before.progress.samples, len(before.warnings)) == (3, 24, 1)
    assert before.progress.unscored_samples == 2
    assert before.progress.images_folder == "samples/step_000002", "until there are newer images"
    assert before.progress.heartbeat_time and before.progress.estimated_remaining_seconds
    assert before.running_time and before.children.ray_cluster
    simulation.lose_head(1)
    await simulation.after(60)
    status = simulation.status()
    assert (status.attempts, status.progress.global_step, status.usage.samples) == (2, 3, 24)
    assert (status.weights, status.warnings, status.running_time) == (Weights(), (), None)
    assert (status.progress.samples, status.progress.unscored_samples) == (None, None)
    assert status.progress.heartbeat_time is None
    assert status.progress.estimated_remaining_seconds is None
    assert "red-a01" not in str(status.children)


async def test_missing_heartbeats_are_a_condition_until_they_resume(simulation: Any) -> None:
    await simulation.submit_running()
    assert simulation.condition("ProgressStalled").reason == "NoReports"
    simulation.report(step=1)
    await simulation.after(599)
    assert simulation.condition("ProgressStalled").status == "False"
    await simulation.after(2)
    assert simulation.condition("ProgressStalled").reason == "HeartbeatStopped"
    simulation.report("heartbeat")
    await simulation.settle()
    assert simulation.condition("ProgressStalled").status == "False"
    assert {"ProgressStalled", "ProgressResumed"} <= set(simulation.event_reasons())


async def test_long_steps_extend_the_stall_timeout(simulation: Any) -> None:
    await simulation.submit_running()
    simulation.report(step=1, **{"timing_s/step": 600.0})
    await simulation.after(2900)
    assert simulation.condition("ProgressStalled").status == "False"


async def test_downtime_of_the_operator_does_not_count_as_a_stall(simulation: Any) -> None:
    await simulation.submit_running()
    simulation.report(step=1)
    await simulation.after(60)
    simulation.now = simulation.now.replace(hour=9)  # the operator was away
    simulation.start_operator()
    await simulation.settle()
    assert simulation.condition("ProgressStalled").status == "False"
    await simulation.after(601)
    assert simulation.condition("ProgressStalled").status == "True"


async def test_the_time_in_a_queue_counts_neither_as_a_stall_nor_as_the_age_of_weights(simulation: Any) -> None:
    await simulation.submit_running()
    synced = {"weights/version": 1, "weights/min_replica_version": 1, "timing_s/sync": 0.5}
    simulation.report(step=1, **synced)
    await simulation.after(60)
    stopped = {"jobDeploymentStatus": "Suspended", "jobStatus": "", "startTime": None}
    simulation.cluster.change(RAYJOBS, *RAYJOB, spec={"suspend": True}, status=stopped)
    await simulation.after(7200)
    simulation.cluster.change(RAYJOBS, *RAYJOB, spec={"suspend": False})
    simulation.run(1)
    await simulation.settle()
    assert simulation.condition("ProgressStalled").status == "False"
    assert simulation.condition("WeightsInSync").status == "True"
    await simulation.after(601)
    assert simulation.condition("ProgressStalled").status == "True", "the trainer has not reported since it started"
    await simulation.after(3600)
    assert simulation.condition("WeightsInSync").reason == "WeightsOld"


async def test_replicas_behind_the_trainer_are_a_condition(simulation: Any) -> None:
    await simulation.submit_running()
    simulation.report(
        step=4, **{"weights/version": 4, "weights/min_replica_version": 4, "weights/max_replica_version": 4}
    )
    await simulation.settle()
    assert simulation.condition("WeightsInSync").status == "True"
    simulation.report(
        step=9, **{"weights/version": 9, "weights/min_replica_version": 4, "weights/max_replica_version": 9}
    )
    await simulation.settle()
    assert simulation.condition("WeightsInSync").reason == "ReplicaBehind"
    assert simulation.status().weights.lag == 5
    assert "WeightsBehind" in simulation.event_reasons()
    simulation.report(step=10, **{"weights/version": 10, "weights/min_replica_version": 9})
    await simulation.settle()
    assert simulation.condition("WeightsInSync").status == "True", "one version behind is what the job allows"
    assert simulation.event_reasons().count("WeightsInSync") == 1


async def test_replicas_with_old_weights_are_a_condition(simulation: Any) -> None:
    await simulation.submit_running(rollout={"replicas": 2, "staleness": {"maxSeconds": 300}})
    synced = {"weights/version": 4, "weights/min_replica_version": 4, "timing_s/sync": 0.2}
    simulation.report(step=4, **synced)
    await simulation.after(299)
    assert simulation.condition("WeightsInSync").status == "True"
    await simulation.after(2)
    assert simulation.condition("WeightsInSync").reason == "WeightsOld"
    simulation.report("heartbeat")
    await simulation.settle()
    assert simulation.condition("WeightsInSync").reason == "WeightsOld", "that a trainer lives makes no weights new"
    simulation.report(step=5, **{**synced, "weights/version": 5, "weights/min_replica_version": 5})
    await simulation.settle()
    assert simulation.condition("WeightsInSync").reason == "InSync"
    assert {"WeightsBehind", "WeightsInSync"} <= set(simulation.event_reasons())


async def test_a_stale_attempts_report_changes_nothing(simulation: Any) -> None:
    await simulation.submit_running(backoffLimit=1)
    simulation.lose_head(1)
    await simulation.after(60)
    simulation.run(2)
    simulation.report(attempt=2, step=3)
    assert simulation.report(attempt=1, step=99) == {"stale": True}
    await simulation.after(60)
    assert simulation.status().progress.global_step == 3


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0m0s"), (59.2, "1m0s"), (3599, "59m59s"), (7380, "2h3m"), (90_000, "1d1h")],
)
async def test_the_time_left_is_shown_as_kubectl_shows_ages(simulation: Any, seconds: float, shown: str) -> None:
    await simulation.submit_running()
    simulation.report(step=5, eta_s=seconds)
    await simulation.settle()
    progress = simulation.status().progress
    assert (progress.percent, progress.remaining_summary) == (50, shown)
