"""Attempts of a job: creation, observation, end, and writes of the status."""

from typing import Any

import pytest

from control.operator_core.pools import KEY
from e2e.fake_cluster import FakeCluster
from omni_operator.api.status import CONDITION_TYPES
from omni_operator.cluster.errors import Conflict, Forbidden
from omni_operator.cluster.kinds import JOBS, RAYJOBS, Body, Kind
from omni_operator.reconcile.status_writer import APART, TRIES


async def test_a_job_runs_to_success(simulation: Any) -> None:
    await simulation.submit_and_settle()
    status = simulation.status()
    assert [condition.type for condition in status.conditions] == list(CONDITION_TYPES)
    assert {condition.observed_generation for condition in status.conditions} == {1}
    assert simulation.attempts() == ["red-a01"]
    assert status.attempts == 1
    await simulation.run_and_settle(1)
    assert simulation.condition("Ready").status == "True"
    assert simulation.condition("WeightsInSync").reason == "NoReports"
    await simulation.end_and_settle(1)
    assert simulation.condition("Succeeded").status == "True"
    assert simulation.status().completion_time
    assert simulation.event_reasons() == ["Running", "Succeeded"]


async def test_the_condition_of_the_output_is_what_the_trainer_last_said(simulation: Any) -> None:
    def output() -> tuple[str, str, str]:
        condition = simulation.condition("OutputSent")
        return condition.status, condition.reason, condition.message

    await simulation.submit_and_settle(output={"url": "s3://bucket/runs"}, checkpoint={})
    assert output() == ("Unknown", "NothingSent", "")
    assert simulation.condition("ResultsKept").reason == "OutputGiven"
    simulation.run(1)
    await simulation.report_and_settle("warning", step=2, reason="OutputNotSent", message="NO_SUCH_BUCKET")
    assert output() == ("False", "OutputNotSent", "NO_SUCH_BUCKET")
    assert "TrainerWarning" in simulation.event_reasons()
    await simulation.report_and_settle("output", step=4, url="s3://bucket/runs/red")
    assert output() == ("True", "Sent", "results of step 4 in s3://bucket/runs/red")
    simulation.report("error", reason="OutputNotSent", message="SLOW_DOWN")
    await simulation.end_and_settle(1, "FAILED")
    assert output() == ("False", "OutputNotSent", "SLOW_DOWN")
    assert simulation.condition("Failed").reason == "OutputNotSent"


async def test_risky_settings_of_a_job_are_a_condition_and_an_event(simulation: Any) -> None:
    await simulation.submit_and_settle(checkpoint={}, trainer={"totalSteps": 10}, rollout={})
    assert simulation.verdict("ResultsKept") == ("False", "ResultsOnEmptyDir")
    assert "spec.checkpoint.claimName is not given" in simulation.condition("ResultsKept").message
    assert simulation.verdict("AcceleratorChosen") == ("False", "NoVendor")
    assert sorted(simulation.event_reasons()) == ["NoVendor", "ResultsOnEmptyDir"]
    await simulation.run_and_settle(1)
    assert sorted(simulation.event_reasons()) == ["NoVendor", "ResultsOnEmptyDir", "Running"], "said once"


async def test_creation_takes_few_requests_and_idle_passes_none(simulation: Any) -> None:
    await simulation.submit_and_settle()
    counts = simulation.cluster.counts()
    assert counts == {
        ("create", "networkpolicies"): 1,
        ("create", "rayjobs"): 1,
        ("apply_status", "diffusionrljobs"): 1,
    }
    await simulation.run_and_settle(1)
    assert simulation.cluster.counts() == {
        ("create", "poddisruptionbudgets"): 1,
        ("apply_status", "diffusionrljobs"): 1,
        ("create", "events"): 1,
    }
    for _ in range(5):
        await simulation.reconcile()
        await simulation.after(600)
    assert not simulation.cluster.counts()


async def test_an_edit_takes_effect_in_the_next_attempt_with_a_condition(simulation: Any) -> None:
    await simulation.submit_running(backoffLimit=1)
    await simulation.edit_and_settle(trainer={"totalSteps": 20})
    assert simulation.condition("Updated").reason == "NextAttempt"
    assert "total_training_steps=10" in simulation.cluster.get(RAYJOBS, KEY[0], "red-a01")["spec"]["entrypoint"]
    simulation.lose_head(1)
    await simulation.after(60)
    assert "total_training_steps=20" in simulation.cluster.get(RAYJOBS, KEY[0], "red-a02")["spec"]["entrypoint"]
    assert simulation.condition("Updated").status == "True"


async def test_deadlines(simulation: Any) -> None:
    await simulation.submit_starting(activeDeadlineSeconds=100, preRunningDeadlineSeconds=50, backoffLimit=5)
    await simulation.after(51)
    assert simulation.status().failures[0].reason == "PreRunningDeadlineExceeded"
    await simulation.after(10)
    simulation.run(2)
    await simulation.after(60)
    assert simulation.condition("Failed").reason == "DeadlineExceeded"
    assert simulation.attempts() == []


async def test_time_in_a_queue_does_not_count_for_the_start_deadline(simulation: Any) -> None:
    await simulation.submit_and_settle(preRunningDeadlineSeconds=50)
    simulation.change(RAYJOBS, spec={"suspend": True}, status={"jobDeploymentStatus": "Suspended"})
    await simulation.after(1000)
    assert simulation.condition("Admitted").reason == "Queued"
    simulation.change(RAYJOBS, spec={"suspend": False}, status={"jobDeploymentStatus": "Initializing"})
    await simulation.after(49)
    assert not simulation.status().failures
    await simulation.after(2)
    assert simulation.status().failures[0].reason == "PreRunningDeadlineExceeded"


async def test_a_status_that_rests_on_an_old_one_is_not_written(simulation: Any) -> None:
    """As after a change of the leader: another replica wrote, and the watch has not delivered it yet."""
    await simulation.submit_running(backoffLimit=3)
    simulation.frozen = {JOBS}
    before = simulation.cluster.get(JOBS, *KEY)
    written = await simulation.cluster.apply_status(JOBS, before, {**before["status"], "failuresCounted": 2})
    simulation.end(1, "FAILED", "AppFailed", "exit code 1")
    simulation.watch()
    await simulation.reconcile()
    assert simulation.cluster.get(JOBS, *KEY) == written
    simulation.frozen = set()
    await simulation.after(60)
    status = simulation.status()
    assert (status.failures_counted, [failure.attempt for failure in status.failures]) == (3, [1])


async def test_what_a_pass_saw_is_recorded_while_the_watch_of_jobs_delivers_nothing(simulation: Any) -> None:
    """Else the next attempt could be created although the RayCluster of this one, of which no record is left, runs."""
    await simulation.submit_and_settle()
    simulation.frozen = {JOBS}
    simulation.edit(seed=1)
    await simulation.run_and_settle(1)
    await simulation.after(60)
    assert simulation.status().children.ray_cluster == "red-a01-x1"


async def test_the_number_of_an_attempt_that_the_status_never_had_is_not_used_again(simulation: Any) -> None:
    """Others change the job all the time, so each status is a conflict; then it is suspended."""
    await simulation.submit_running(backoffLimit=1, suspendPolicy={"mode": "Immediate"})
    simulation.lose_head(1)

    created = False

    def conflict(verb: str, kind: Kind, name: str) -> Conflict | None:
        nonlocal created
        created = created or "red-a02" in simulation.attempts()
        return Conflict("changed") if verb == "apply_status" and created else None

    simulation.cluster.failures = conflict
    await simulation.after(30)
    simulation.edit(suspend=True)
    await simulation.after(30)
    assert (simulation.attempts(), simulation.status().attempts) == ([], 1)
    simulation.allow()
    await simulation.after(30)
    assert (simulation.condition("Suspended").status, simulation.status().attempts) == ("True", 2)
    simulation.edit(suspend=False)
    await simulation.after(30)
    assert simulation.attempts() == ["red-a03"]


class Editor:
    """A user who changes the job right before each write of its status.

    Attributes:
        edits: how many times; counted down.
        status: what the user writes into the status; None: only a label changes.
    """

    def __init__(self, simulation: Any, edits: int, status: dict[str, Any] | None = None) -> None:
        self.simulation = simulation
        self.edits = edits
        self.status = status

    def __call__(self, verb: str, kind: Kind, name: str) -> None:
        if (verb, kind) == ("apply_status", JOBS) and self.edits > 0:
            self.edits -= 1
            cluster = self.simulation.cluster
            meta = cluster.get(JOBS, *KEY)["metadata"]
            change = {"metadata": {**meta, "labels": {"edit": str(self.edits)}}}
            cluster.change(JOBS, *KEY, **change, **({"status": self.status} if self.status else {}))


async def test_the_answer_to_each_written_status_is_told(simulation: Any) -> None:
    answers: list[tuple[Kind, Body]] = []
    simulation.written = lambda kind, body: answers.append((kind, body))
    simulation.submit_and_watch()
    await simulation.reconcile()
    assert [kind for kind, _ in answers] == [RAYJOBS, JOBS]
    job = simulation.cluster.get(JOBS, *KEY)
    assert answers[1][1]["metadata"]["resourceVersion"] == job["metadata"]["resourceVersion"]
    answers.clear()
    simulation.watch()
    await simulation.reconcile()
    assert answers == [], "nothing was written"


@pytest.mark.parametrize("edits", [1, TRIES - 1])
async def test_labels_that_change_all_the_time_do_not_delay_a_status(simulation: Any, edits: int) -> None:
    simulation.submit_and_watch()
    simulation.cluster.failures = Editor(simulation, edits)
    await simulation.reconcile()
    assert simulation.status().attempts == 1
    assert simulation.cluster.counts()["apply_status", "diffusionrljobs"] == edits + 1


async def test_a_status_is_given_up_for_a_while_when_the_job_changes_too_often(simulation: Any) -> None:
    simulation.submit_and_watch()
    simulation.cluster.failures = Editor(simulation, 10**6)
    simulation.cluster.counts()
    await simulation.reconcile()
    assert simulation.cluster.counts()["apply_status", "diffusionrljobs"] == TRIES
    assert simulation.wakes[KEY] > simulation.now, "others have their turn"


async def test_a_status_that_another_one_wrote_meanwhile_is_not_overwritten(simulation: Any) -> None:
    simulation.submit_and_watch()
    simulation.cluster.failures = Editor(simulation, 1, {"attempts": 1, "startTime": "2026-01-01T00:00:07Z"})
    simulation.cluster.counts()
    await simulation.reconcile()
    assert simulation.cluster.counts()["apply_status", "diffusionrljobs"] == 1
    await simulation.after(5)
    assert simulation.status().start_time == "2026-01-01T00:00:07Z", "the next pass rests on it"


async def test_without_the_right_to_read_a_job_its_status_waits_for_the_watch(simulation: Any) -> None:
    simulation.submit_and_watch()
    editor = Editor(simulation, 1)

    def fail(verb: str, kind: Kind, name: str) -> Forbidden | None:
        editor(verb, kind, name)
        return Forbidden("get") if (verb, kind) == ("get", JOBS) else None

    simulation.cluster.failures = fail
    await simulation.after(2)
    assert simulation.status().attempts == 1
    assert simulation.status().condition("ReconcileError") is None


@pytest.mark.parametrize("lost", ["conditions", "failures failuresCounted", "usage", "attempts"])
async def test_a_webhook_that_alters_each_status_is_not_answered_with_a_status_each_time(
    simulation: Any, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """Else both write as fast as the API server answers."""
    stored = FakeCluster.apply_status
    simulation.foreign_reasons.add("Approved")

    async def alter(cluster: FakeCluster, kind: Kind, body: Body, status: Body) -> Body:
        kept = {name: value for name, value in status.items() if name not in lost.split()}
        if lost == "conditions":
            kept["conditions"] = [{**condition, "reason": "Approved"} for condition in status["conditions"]]
        return await stored(cluster, kind, body, kept)

    await simulation.submit_running(backoffLimit=1)
    with monkeypatch.context() as patch:
        patch.setattr(FakeCluster, "apply_status", alter)
        simulation.lose_head(1)
        assert (await simulation.requests_in(600))["apply_status", "diffusionrljobs"] <= 600 / APART.total_seconds() + 8
        assert len(simulation.attempts()) <= 1
    await simulation.after(60)
    assert simulation.attempts() == ["red-a02"]
    assert [failure.reason for failure in simulation.status().failures] == ["HeadLost"]
    assert simulation.condition("Ready").reason == "Starting"
