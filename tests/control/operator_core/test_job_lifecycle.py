"""Suspension, deletion, refusals, bad specs, reports: what else happens to a job."""

from __future__ import annotations

from typing import Any

import pytest

from omni_operator.cluster.errors import ClusterError, NamespaceTerminating, QuotaExceeded, Refused, Unavailable
from omni_operator.cluster.kinds import JOBS, PODS, RAYCLUSTERS, RAYJOBS, Kind

KEY = ("team-a", "red")


async def running(world: Any, **spec: Any) -> None:
    world.submit(**spec)
    await world.settle()
    world.run(1)
    await world.settle()


async def test_suspension_asks_for_a_checkpoint_waits_for_it_and_resumes_with_the_next_attempt(world: Any) -> None:
    await running(world)
    assert world.report(step=5) == {}
    await world.settle()
    world.edit(suspend=True)
    await world.settle()
    assert world.condition("Suspended").reason == "CheckpointRequested"
    assert world.report(step=6) == {"checkpoint": True}
    await world.settle()
    assert world.attempts() == ["red-a01"]
    assert world.report("checkpoint", path="/ckpt/checkpoints/step_000006") == {}
    await world.settle()
    assert world.condition("Suspended").status == "True"
    assert world.attempts() == []
    assert not world.cluster.all(PODS)
    assert world.status().checkpoint.last == "step_000006"
    await world.after(3600)
    world.edit(suspend=False)
    await world.settle()
    assert world.attempts() == ["red-a02"]
    assert world.condition("Suspended").status == "False"
    assert not world.status().failures
    assert {"Suspending", "Suspended", "Resumed", "CheckpointSaved"} <= set(world.told())


async def test_suspension_does_not_wait_for_ever(world: Any) -> None:
    await running(world, suspendPolicy={"graceSeconds": 30})
    world.report(step=5)
    world.edit(suspend=True)
    await world.after(29)
    assert world.attempts() == ["red-a01"]
    await world.after(2)
    assert world.condition("Suspended").status == "True"


@pytest.mark.parametrize("spec", [{}, {"suspendPolicy": {"mode": "Immediate"}}])
async def test_a_trainer_that_never_reported_is_not_asked(world: Any, spec: dict[str, Any]) -> None:
    await running(world, **spec)
    world.edit(suspend=True)
    await world.settle()
    assert world.condition("Suspended").status == "True"


async def test_a_suspension_that_is_taken_back_in_time_changes_nothing(world: Any) -> None:
    await running(world)
    world.report(step=5)
    world.edit(suspend=True)
    await world.settle()
    world.edit(suspend=False)
    await world.settle()
    assert world.attempts() == ["red-a01"]
    assert world.condition("Suspended").status == "False"
    assert world.condition("Ready").status == "True"


async def test_a_job_submitted_in_suspension_makes_nothing(world: Any) -> None:
    world.submit(suspend=True)
    await world.settle()
    assert world.condition("Suspended").status == "True"
    assert not world.attempts()
    world.edit(suspend=False)
    await world.settle()
    assert world.attempts() == ["red-a01"]


async def test_deletion_leaves_nothing_and_makes_nothing(world: Any) -> None:
    await running(world)
    world.cluster.change(RAYJOBS, KEY[0], "red-a01", metadata={"finalizers": ["ray.io/rayjob-finalizer"]})
    await world.settle()
    world.cluster.counts()
    world.cluster.remove(JOBS, *KEY)
    await world.settle()
    assert world.cluster.get(JOBS, *KEY) is not None  # held until KubeRay has stopped the Ray job
    world.cluster.change(RAYJOBS, KEY[0], "red-a01", metadata={"finalizers": []})
    await world.settle()
    world.cluster.collect()
    assert not [kind for kind in (JOBS, RAYJOBS, RAYCLUSTERS, PODS) if world.cluster.all(kind)]
    assert world.cluster.counts() == {("delete", "rayjobs"): 1, ("patch", "diffusionrljobs"): 1}


async def test_deletion_is_not_held_up_by_what_does_not_go(world: Any) -> None:
    await running(world)
    world.cluster.change(RAYJOBS, KEY[0], "red-a01", metadata={"finalizers": ["ray.io/rayjob-finalizer"]})
    world.cluster.remove(JOBS, *KEY)
    await world.after(59)
    assert world.cluster.get(JOBS, *KEY) is not None
    await world.after(2)
    assert world.cluster.get(JOBS, *KEY) is None


async def test_a_job_of_the_same_name_is_another_job(world: Any) -> None:
    await running(world)
    world.cluster.change(RAYCLUSTERS, KEY[0], "red-a01-x1", metadata={"finalizers": ["slow"]})
    world.cluster.remove(JOBS, *KEY)
    await world.settle()
    assert world.cluster.get(JOBS, *KEY) is None
    await world.after(5)
    world.submit()
    await world.settle()
    assert world.condition("Ready").reason == "BetweenAttempts"  # both would write the same folder
    world.cluster.change(RAYCLUSTERS, KEY[0], "red-a01-x1", metadata={"finalizers": []})
    await world.settle()
    status = world.status()
    assert (status.attempts, status.failures) == (1, ())
    assert world.attempts() == ["red-a01"]
    assert status.children.ray_cluster is None


async def test_without_kuberay_a_condition_says_so_until_it_is_installed(world: Any) -> None:
    world.cluster.absent = {RAYJOBS}
    world.submit()
    await world.settle()
    for kind in ("Admitted", "Ready"):
        assert world.condition(kind).reason == "KubeRayNotInstalled"
    assert "install KubeRay" in world.condition("Ready").message
    assert "KubeRayNotInstalled" in world.told()
    world.cluster.counts()
    await world.after(300)
    assert world.cluster.counts()["apply", "rayjobs"] <= 21
    world.cluster.absent = set()
    await world.after(31)
    assert world.attempts() == ["red-a01"]
    assert world.condition("Ready").reason == "Starting"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (QuotaExceeded("exceeded quota: gpus"), "QuotaExceeded"),
        (Refused("RayJob is invalid: spec.x"), "ChildRefused"),
        (NamespaceTerminating("being terminated"), "NamespaceTerminating"),
    ],
)
async def test_a_refused_child_is_a_condition_and_is_tried_ever_more_rarely(
    world: Any, error: ClusterError, reason: str
) -> None:
    def refuse(verb: str, kind: Kind, name: str) -> ClusterError | None:
        return error if (verb, kind) == ("apply", RAYJOBS) else None

    world.cluster.refusals = refuse
    world.submit()
    await world.after(3600)
    assert world.condition("Ready").reason == reason
    assert world.cluster.counts()["apply", "rayjobs"] < 25
    for number in range(10):  # nothing that was asked has changed
        world.cluster.change(JOBS, *KEY, metadata={"annotations": {"example.com/touched": str(number)}})
        await world.settle()
    assert not world.cluster.counts()
    world.cluster.refusals = lambda verb, kind, name: None
    world.edit(seed=1)  # a change is tried at once
    await world.settle()
    assert world.attempts() == ["red-a01"]


async def test_a_spec_that_cannot_be_used_is_a_condition_and_can_be_mended(world: Any) -> None:
    world.submit(rollout={"replicas": 3})
    await world.settle()
    assert world.condition("Admitted").reason == "InvalidSpec"
    assert "spec.rollout.replicas" in world.condition("Ready").message
    assert not world.attempts()
    assert len(world.status().conditions) == 10
    world.cluster.counts()
    await world.after(600)
    assert not world.cluster.counts()
    world.edit(rollout={"replicas": 2})
    await world.settle()
    assert world.attempts() == ["red-a01"]
    world.run(1)
    await world.settle()
    world.edit(rollout={"replicas": 3})
    await world.settle()
    assert world.condition("Updated").reason == "InvalidSpec"
    assert world.condition("Ready").status == "True"  # what runs is left alone
    world.cluster.remove(JOBS, *KEY)
    await world.settle()
    assert world.cluster.get(JOBS, *KEY) is None


async def test_somebody_elses_job_is_left_alone(world: Any) -> None:
    world.submit(managedBy="kueue.x-k8s.io/multikueue")
    await world.after(3600)
    assert not world.cluster.counts()


async def test_reports_become_progress_in_few_writes(world: Any) -> None:
    await running(world)
    world.cluster.counts()
    for step in range(1, 301):
        world.report(step=step, eta_s=300 - step, samples=8 * step, **{"weights/version": step, "reward/mean": 0.5})
        await world.after(1)
    writes = world.cluster.counts()["apply_status", "diffusionrljobs"]
    assert 18 <= writes <= 24  # 300 seconds at 15 each, and the changes of conditions
    await world.after(60)
    status = world.status()
    assert (status.progress.global_step, status.weights.trainer_version, status.usage.samples) == (300, 300, 2400)
    assert status.progress.reward == 0.5
    assert 580 <= status.usage.accelerator_seconds <= 600


async def test_what_a_trainer_waits_for_is_said_until_it_trains(world: Any) -> None:
    await running(world)
    for text in ("starting the rollout engine", "evaluating"):
        world.report("phase", text=text)
        await world.after(20)
        found = world.condition("Succeeded")
        assert (found.status, found.reason, found.message) == ("Unknown", "Running", text)
    world.report(step=1)
    await world.after(20)
    assert world.condition("Succeeded").message == ""


async def test_usage_adds_up_over_attempts_and_restarts(world: Any) -> None:
    await running(world, backoffLimit=3)
    await world.after(100)
    world.report(step=1, samples=100)
    await world.after(20)
    world.start_operator()
    await world.settle()
    world.lose_head(1)
    await world.after(60)
    world.run(2)
    await world.after(100)
    world.report(attempt=2, step=2, samples=60)
    world.end(2)
    await world.settle()
    status = world.status()
    assert status.usage.samples == 160
    assert 2 * 210 <= status.usage.accelerator_seconds <= 2 * 225
    price = status.usage.accelerator_seconds_per_thousand_samples
    assert price == pytest.approx(status.usage.accelerator_seconds * 1000 / 160, abs=0.1)


async def test_a_heart_that_stops_is_seen_and_its_beating_again_too(world: Any) -> None:
    await running(world)
    assert world.condition("ProgressStalled").reason == "NoReports"
    world.report(step=1)
    await world.after(599)
    assert world.condition("ProgressStalled").status == "False"
    await world.after(2)
    assert world.condition("ProgressStalled").reason == "HeartbeatStopped"
    world.report("heartbeat")
    await world.settle()
    assert world.condition("ProgressStalled").status == "False"
    assert {"ProgressStalled", "ProgressResumed"} <= set(world.told())


async def test_a_trainer_that_takes_long_steps_is_given_their_time(world: Any) -> None:
    await running(world)
    world.report(step=1, **{"timing_s/step": 600.0})
    await world.after(2900)
    assert world.condition("ProgressStalled").status == "False"


async def test_the_operators_own_absence_is_not_held_against_the_trainer(world: Any) -> None:
    await running(world)
    world.report(step=1)
    await world.after(60)
    world.now = world.now.replace(hour=9)  # the operator was away
    world.start_operator()
    await world.settle()
    assert world.condition("ProgressStalled").status == "False"
    await world.after(601)
    assert world.condition("ProgressStalled").status == "True"


async def test_engines_that_are_behind_are_a_condition(world: Any) -> None:
    await running(world)
    world.report(step=4, **{"weights/version": 4, "weights/min_replica_version": 4, "weights/max_replica_version": 4})
    await world.settle()
    assert world.condition("WeightsInSync").status == "True"
    world.report(step=9, **{"weights/version": 9, "weights/min_replica_version": 4, "weights/max_replica_version": 9})
    await world.settle()
    assert world.condition("WeightsInSync").reason == "ReplicaBehind"
    assert world.status().weights.lag == 5
    assert "WeightsBehind" in world.told()
    world.report(step=10, **{"weights/version": 10, "weights/min_replica_version": 9})
    await world.settle()
    assert world.condition("WeightsInSync").status == "True", "one version behind is what the job allows"
    assert world.told().count("WeightsInSync") == 1


async def test_engines_whose_weights_are_old_are_a_condition(world: Any) -> None:
    await running(world, rollout={"replicas": 2, "staleness": {"maxSeconds": 300}})
    synced = {"weights/version": 4, "weights/min_replica_version": 4, "timing_s/sync": 0.2}
    world.report(step=4, **synced)
    await world.after(299)
    assert world.condition("WeightsInSync").status == "True"
    await world.after(2)
    assert world.condition("WeightsInSync").reason == "WeightsOld"
    world.report("heartbeat")
    await world.settle()
    assert world.condition("WeightsInSync").reason == "WeightsOld", "that a trainer lives makes no weights new"
    world.report(step=5, **{**synced, "weights/version": 5, "weights/min_replica_version": 5})
    await world.settle()
    assert world.condition("WeightsInSync").reason == "InSync"
    assert {"WeightsBehind", "WeightsInSync"} <= set(world.told())


async def test_a_stale_attempts_report_changes_nothing(world: Any) -> None:
    await running(world, backoffLimit=1)
    world.lose_head(1)
    await world.after(60)
    world.run(2)
    world.report(attempt=2, step=3)
    assert world.report(attempt=1, step=99) == {"stale": True}
    await world.after(60)
    assert world.status().progress.global_step == 3


async def test_an_api_server_that_is_away_is_left_to_the_worker(world: Any) -> None:
    world.submit()
    world.watch()
    world.cluster.refusals = lambda verb, kind, name: Unavailable("away")
    with pytest.raises(Unavailable):
        await world.reconcile()
    world.cluster.refusals = lambda verb, kind, name: None
    await world.reconcile()
    await world.settle()
    assert world.attempts() == ["red-a01"]


async def test_a_finished_job_keeps_its_words_and_stops_what_kuberay_does_not(world: Any) -> None:
    await running(world)
    assert world.status().rollout.summary == "1/1"
    world.lose_head(1)
    await world.settle()
    said = world.condition("Failed")
    assert said.reason == "HeadLost"
    assert world.attempts() == []
    await world.after(3600)
    assert world.condition("Failed") == said
    assert world.status().rollout.summary == "0/1", "the pods are gone"


async def test_retain_keeps_what_a_failed_attempt_left(world: Any) -> None:
    await running(world, cleanupPolicy="Retain")
    world.lose_head(1)
    await world.after(3600)
    assert world.attempts() == ["red-a01"]
