"""Reports of the trainer: progress, stalls, weight versions, and the accelerator seconds of any history."""

import asyncio
import math
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from control.operator_core.pools import CLUSTER, KEY
from e2e.faulty_cluster import Fault
from omni_operator.api.names import PODS_ANNOTATION
from omni_operator.api.status import Weights
from omni_operator.cluster.kinds import PODS, RAYCLUSTERS, RAYJOBS
from omni_operator.status.observed.timestamps import parse_timestamp

RAYJOB = (KEY[0], "red-a01")


async def test_reports_update_the_progress_with_few_writes(simulation: Any) -> None:
    await simulation.submit_running()
    simulation.cluster.counts()
    for step in range(1, 301):
        metrics = {"weights/version": step, "reward/mean": 0.5}
        simulation.report(step=step, eta_s=300 - step, samples=8 * step, **metrics)
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
        condition = simulation.condition("Succeeded")
        assert (condition.status, condition.reason, condition.message) == ("Unknown", "Running", text)
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
    await simulation.end_and_settle(2)
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
    await simulation.report_and_settle("heartbeat")
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
    simulation.change(RAYJOBS, spec={"suspend": True}, status=stopped)
    await simulation.after(7200)
    simulation.change(RAYJOBS, spec={"suspend": False})
    await simulation.run_and_settle(1)
    assert simulation.condition("ProgressStalled").status == "False"
    assert simulation.condition("WeightsInSync").status == "True"
    await simulation.after(601)
    assert simulation.condition("ProgressStalled").status == "True", "the trainer has not reported since it started"
    await simulation.after(3600)
    assert simulation.condition("WeightsInSync").reason == "WeightsOld"


async def test_replicas_behind_the_trainer_are_a_condition(simulation: Any) -> None:
    await simulation.submit_running()
    versions = {"weights/min_replica_version": 4, "weights/max_replica_version": 9}
    await simulation.report_and_settle(step=4, **{"weights/version": 4, "weights/min_replica_version": 4})
    assert simulation.condition("WeightsInSync").status == "True"
    await simulation.report_and_settle(step=9, **{"weights/version": 9, **versions})
    assert simulation.condition("WeightsInSync").reason == "ReplicaBehind"
    assert simulation.status().weights.lag == 5
    assert "WeightsBehind" in simulation.event_reasons()
    await simulation.report_and_settle(step=10, **{"weights/version": 10, "weights/min_replica_version": 9})
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
    await simulation.report_and_settle("heartbeat")
    assert simulation.condition("WeightsInSync").reason == "WeightsOld", "that a trainer lives makes no weights new"
    await simulation.report_and_settle(step=5, **{**synced, "weights/version": 5, "weights/min_replica_version": 5})
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
    await simulation.report_and_settle(step=5, eta_s=seconds)
    progress = simulation.status().progress
    assert (progress.percent, progress.remaining_summary) == (50, shown)


ACCELERATORS = 2
ACTIONS = st.tuples(st.sampled_from(["report", "heartbeat", "pass", "restart"]), st.floats(0.001, 400.0))
# The trainer's accelerators, which only the next attempt gets, and the rollout pods, which a running one follows.
EDITS = st.tuples(st.sampled_from(["count", "replicas"]), st.sampled_from([1, 2, 4]))
STEPS = st.lists(st.tuples(ACTIONS, st.none() | EDITS), max_size=8)
ENDS = st.sampled_from(["succeed", "fail", "suspend", "suspend at once", "queue"])
ATTEMPTS = st.lists(st.tuples(st.lists(ACTIONS, max_size=10), ENDS), min_size=1, max_size=3)


async def act(simulation: Any, what: str, attempt: int) -> None:
    if what == "report":
        simulation.report(attempt=attempt, step=simulation.passes, samples=simulation.passes)
    elif what == "heartbeat":
        simulation.report("heartbeat", attempt=attempt)
    elif what == "restart":
        simulation.start_operator()
    else:
        await simulation.reconcile()


async def end(simulation: Any, how: str, attempt: int) -> Any:
    """End an attempt; the time until which its accelerators count."""
    until = simulation.now
    if how == "succeed":
        simulation.end(attempt)
    elif how == "fail":
        simulation.end(attempt, "FAILED", "AppFailed", "exit code 1")
    elif how == "queue":
        name = f"red-a{attempt:02d}"
        status = {"jobDeploymentStatus": "Suspended", "jobStatus": "", "startTime": None}
        simulation.cluster.change(RAYJOBS, KEY[0], name, spec={"suspend": True}, status=status)
        await simulation.after(500)
        simulation.edit(suspend=True)
    else:
        await simulation.report_and_settle("heartbeat", attempt=attempt)
        simulation.edit(suspend=True)
        await simulation.after(50.25)
        until = simulation.now
        path = f"/ckpt/step_{attempt:06d}"
        simulation.report("checkpoint", attempt=attempt, path=path)
    await simulation.settle()
    simulation.cluster.collect()
    return until


@pytest.mark.slow
@given(ATTEMPTS)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_accelerator_seconds_are_exact(new_simulation: Any, attempts: list[Any]) -> None:
    async def run() -> None:
        simulation = new_simulation()
        expected = 0.0
        simulation.submit(backoffLimit=9)
        for attempt, (actions, how) in enumerate(attempts, start=1):
            await simulation.after(1000.5)
            simulation.run(attempt)
            started = simulation.now
            await simulation.settle()
            for what, seconds in actions:
                await simulation.after(seconds)
                await act(simulation, what, attempt)
                await simulation.settle()
            until = await end(simulation, how, attempt)
            expected += (until - started).total_seconds()
            measured = simulation.status().usage.accelerator_seconds / ACCELERATORS
            assert math.isclose(measured, expected, abs_tol=attempt), (attempt, how)
            if how == "succeed":
                break
            if simulation.condition("Suspended").status == "True":
                simulation.edit(suspend=False)
        await simulation.after(1000)
        written = simulation.status().usage.accelerator_seconds / ACCELERATORS
        assert math.isclose(written, expected, abs_tol=len(attempts)), "what ended is not counted again"

    asyncio.run(run())


@pytest.mark.parametrize("is_reported", [True, False], ids=["the trainer's start is reported", "its start is not"])
async def test_samples_of_an_attempt_that_a_queue_stops_and_starts_again_are_all_counted(
    simulation: Any, is_reported: bool
) -> None:
    """The trainer counts from 0 again."""
    await simulation.submit_running()
    for samples in (16, 64):
        simulation.report(step=samples // 16, samples=samples)
        await simulation.after(60)
    stopped = {"jobDeploymentStatus": "Suspended", "jobStatus": "", "startTime": None}
    simulation.change(RAYJOBS, spec={"suspend": True}, status=stopped)
    await simulation.after(60)
    simulation.change(RAYJOBS, spec={"suspend": False})
    simulation.run(1)
    if is_reported:
        simulation.report("start", total_steps=10)
        await simulation.after(60)
        assert simulation.status().progress.samples == 0
    for samples in (80, 96) if is_reported else (32, 96):
        simulation.report(step=4 + samples // 16, samples=samples)
        await simulation.after(60)
    status = simulation.status()
    assert (status.attempts, status.progress.samples, status.usage.samples) == (1, 96, 64 + 96)


async def test_an_attempt_runs_from_the_start_of_its_trainer_on_also_if_that_is_seen_late(simulation: Any) -> None:
    await simulation.submit_and_settle()
    simulation.run(1)
    started = simulation.now
    simulation.now += timedelta(seconds=40)
    await simulation.settle()
    assert parse_timestamp(simulation.status().running_time) == started
    await simulation.after(60)
    await simulation.end_and_settle(1)
    assert simulation.status().usage.accelerator_seconds == 2 * 100


async def test_a_start_that_the_operators_clock_has_not_reached_counts_from_when_it_is_seen(simulation: Any) -> None:
    simulation.skew = -timedelta(minutes=5)
    await simulation.submit_running()
    seen = simulation.now + simulation.skew
    for _ in range(2):
        assert parse_timestamp(simulation.status().running_time) == seen
        simulation.report(step=1)
        await simulation.after(60)
    assert simulation.status().usage.accelerator_seconds > 0


def separate(count: int, replicas: int) -> dict[str, Any]:
    """Parts of a spec: one trainer pod with so many accelerators, and rollout pods with one each."""
    accelerator = {"vendor": "NVIDIA", "count": count}
    rollout = {"placement": "Separate", "replicas": replicas, "accelerator": {"vendor": "NVIDIA", "count": 1}}
    return {"trainer": {"totalSteps": 10, "accelerator": accelerator}, "rollout": rollout}


@pytest.mark.slow
@given(st.lists(STEPS, min_size=1, max_size=3))
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_accelerator_seconds_are_exact_with_edits_of_the_next_attempt_and_scales(
    new_simulation: Any, attempts: list[Any]
) -> None:
    async def run() -> None:
        simulation = new_simulation()
        expected = 0.0
        rounded = 0
        asked = {"count": 2, "replicas": 3}
        await simulation.submit_and_settle(backoffLimit=9, **separate(**asked))
        for attempt, steps in enumerate(attempts, start=1):
            await simulation.after(1000.5)
            count = asked["count"]
            simulation.run(attempt)  # in a cluster with the groups of the RayJob
            groups = simulation.cluster.get(RAYJOBS, KEY[0], f"red-a{attempt:02d}")["spec"]["rayClusterSpec"]
            simulation.cluster.change(RAYCLUSTERS, KEY[0], f"red-a{attempt:02d}-x1", spec=groups)
            await simulation.settle()
            for (what, seconds), change in steps:
                await simulation.after(seconds)
                expected += seconds * (count + asked["replicas"])
                await act(simulation, what, attempt)
                if change is not None:
                    asked |= dict([change])
                    simulation.edit(**separate(**asked))
                await simulation.settle()
                rounded += 8
            await simulation.end_and_settle(attempt, "FAILED", "AppFailed", "exit code 1")
            simulation.cluster.collect()
            assert abs(simulation.status().usage.accelerator_seconds - expected) <= rounded + 8 * attempt
        assert simulation.status().usage.accelerators in (None, asked["count"] + asked["replicas"])

    asyncio.run(run())


async def test_the_status_of_a_running_attempt_keeps_its_pods_after_an_edit(simulation: Any) -> None:
    await simulation.submit_running(backoffLimit=1)
    await simulation.after(1000)
    more = {"trainer": {"totalSteps": 10, "replicas": 4, "accelerator": {"vendor": "NVIDIA", "count": 8}}}
    simulation.edit(**more, rollout={"replicas": 32})
    simulation.start_operator()
    await simulation.after(300)
    await simulation.report_and_settle(step=1)
    status = simulation.status()
    assert simulation.condition("Updated").reason == "NextAttempt"
    assert (status.rollout.summary, status.rollout.desired, status.rollout.updated) == ("1/1", 1, 1)
    assert (status.usage.accelerators, status.usage.accelerator_seconds) == (2, 2 * 1300)
    simulation.end(1, "FAILED", "AppFailed", "exit code 1")
    await simulation.after(3600)
    status = simulation.status()
    assert (status.rollout.summary, status.usage.accelerators) == ("0/4", 32), "the next attempt has the new ones"


async def test_a_job_with_rollout_pods_stays_ready_when_only_the_next_attempt_gets_more_trainers(
    simulation: Any, pools: Any
) -> None:
    await pools.run()
    before = simulation.condition("Ready")
    for changed in ({"replicas": 2}, {"accelerator": {"vendor": "NVIDIA", "count": 4}}):
        simulation.edit(trainer={"totalSteps": 10, "accelerator": {"vendor": "NVIDIA", "count": 2}, **changed})
        await simulation.after(60)
        assert simulation.condition("Updated").reason == "NextAttempt"
        generation = simulation.status().observed_generation
        assert simulation.condition("Ready") == before.model_copy(update={"observed_generation": generation})
    rollout = {"placement": "Separate", "replicas": 3, "minReplicas": 3}
    simulation.edit(rollout=rollout)
    simulation.cluster.remove(PODS, KEY[0], f"{CLUSTER}-rollout-4")
    await simulation.settle()
    assert simulation.verdict("Ready") == ("True", "RolloutsMissing"), "its trainer waits with fewer than 2"
    await simulation.edit_and_settle(rollout={"placement": "Colocated", "replicas": 8, "minReplicas": None})
    assert simulation.condition("Updated").reason == "NextAttempt"
    assert simulation.status().rollout.summary == "2/3", "it keeps its rollout pods"


async def test_an_edit_while_the_operator_is_down_right_after_it_created_an_attempt_changes_no_count(
    simulation: Any,
) -> None:
    simulation.fault = lambda write: Fault.KILLED_BEFORE if write.startswith("apply_status") else None
    simulation.submit()
    with pytest.raises(AssertionError):
        await simulation.settle(3)
    assert (simulation.attempts(), simulation.status().attempts) == (["red-a01"], 0)
    trainer = {"totalSteps": 10, "accelerator": {"vendor": "NVIDIA", "count": 8}}
    simulation.edit(trainer=trainer, rollout={"replicas": 8})
    simulation.run(1)
    simulation.fault = lambda write: None
    simulation.start_operator()
    await simulation.after(100)
    await simulation.report_and_settle(step=1)
    assert simulation.status().usage.accelerator_seconds == 2 * 100


@pytest.mark.parametrize(("vendor", "accelerators"), [("NVIDIA", 2), ("Mock", 2), ("CPU", 0), (None, 0)])
async def test_only_pods_that_request_accelerators_count_some(
    simulation: Any, vendor: str | None, accelerators: int
) -> None:
    accelerator = {"count": 2, **({"vendor": vendor} if vendor else {})}
    await simulation.submit_running(trainer={"totalSteps": 10, "accelerator": accelerator})
    await simulation.after(100)
    assert simulation.status().usage.accelerators == accelerators
    await simulation.end_and_settle(1)
    usage = simulation.status().usage
    assert usage.accelerator_seconds == accelerators * 100


@pytest.mark.parametrize(
    "forged", ["7", "[" * 5000, "{}", '{"trainer": 1}', '{"rollout": {"pods": 9, "accelerators": 9}}']
)
async def test_an_annotation_that_the_operator_did_not_write_is_ignored(simulation: Any, forged: str) -> None:
    await simulation.submit_running()
    simulation.change(RAYJOBS, metadata={"annotations": {PODS_ANNOTATION: forged}})
    await simulation.after(100)
    await simulation.end_and_settle(1)
    assert (simulation.status().rollout.desired, simulation.status().usage.accelerator_seconds) == (1, 200)


async def test_a_silent_job_causes_few_writes(simulation: Any) -> None:
    await simulation.submit_and_settle()
    simulation.run(1)
    await simulation.after(10.5)
    simulation.report(step=1)
    await simulation.after(20)
    simulation.cluster.counts()
    for _ in range(180):
        await simulation.after(20.3)
        await simulation.reconcile()
    once = {("apply_status", "diffusionrljobs"): 1, ("create", "events"): 1}
    assert simulation.cluster.counts() == once, "the job is stalled, and nothing else changes"
    for _ in range(180):
        simulation.report("heartbeat")
        await simulation.after(20.3)
    writes = simulation.cluster.counts()["apply_status", "diffusionrljobs"]
    assert 10 <= writes <= 16
    assert simulation.condition("ProgressStalled").status == "False"
