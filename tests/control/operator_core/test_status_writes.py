"""Writes of the status of a job that others change at the same time."""

from __future__ import annotations

from typing import Any

import pytest

from e2e.fake_cluster import FakeCluster
from omni_operator.cluster.errors import Forbidden
from omni_operator.cluster.kinds import JOBS, RAYJOBS, Body, Kind
from omni_operator.reconcile.status_writer import APART, TRIES

KEY = ("team-a", "red")


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
    simulation.reconciler.written = lambda kind, body: answers.append((kind, body))
    simulation.submit()
    simulation.watch()
    await simulation.reconcile()
    assert [kind for kind, _ in answers] == [RAYJOBS, JOBS]
    assert (
        answers[1][1]["metadata"]["resourceVersion"]
        == simulation.cluster.get(JOBS, *KEY)["metadata"]["resourceVersion"]
    )
    answers.clear()
    simulation.watch()
    await simulation.reconcile()
    assert answers == [], "nothing was written"


@pytest.mark.parametrize("edits", [1, TRIES - 1])
async def test_labels_that_change_all_the_time_do_not_delay_a_status(simulation: Any, edits: int) -> None:
    simulation.submit()
    simulation.watch()
    simulation.cluster.failures = Editor(simulation, edits)
    await simulation.reconcile()
    assert simulation.status().attempts == 1
    assert simulation.cluster.counts()["apply_status", "diffusionrljobs"] == edits + 1


async def test_a_status_is_given_up_for_a_while_when_the_job_changes_too_often(simulation: Any) -> None:
    simulation.submit()
    simulation.watch()
    simulation.cluster.failures = Editor(simulation, 10**6)
    simulation.cluster.counts()
    await simulation.reconcile()
    assert simulation.cluster.counts()["apply_status", "diffusionrljobs"] == TRIES
    assert simulation.wakes[KEY] > simulation.now, "others have their turn"


async def test_a_status_that_another_one_wrote_meanwhile_is_not_overwritten(simulation: Any) -> None:
    simulation.submit()
    simulation.watch()
    simulation.cluster.failures = Editor(simulation, 1, {"attempts": 1, "startTime": "2026-01-01T00:00:07Z"})
    simulation.cluster.counts()
    await simulation.reconcile()
    assert simulation.cluster.counts()["apply_status", "diffusionrljobs"] == 1
    await simulation.after(5)
    assert simulation.status().start_time == "2026-01-01T00:00:07Z", "the next pass rests on it"


async def test_without_the_right_to_read_a_job_its_status_waits_for_the_watch(simulation: Any) -> None:
    simulation.submit()
    simulation.watch()
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
        rest = {name: value for name, value in status.items() if name not in lost.split()}
        if lost == "conditions":
            rest["conditions"] = [{**found, "reason": "Approved"} for found in status["conditions"]]
        return await stored(cluster, kind, body, rest)

    await simulation.submit_running(backoffLimit=1)
    with monkeypatch.context() as patch:
        patch.setattr(FakeCluster, "apply_status", alter)
        simulation.lose_head(1)
        simulation.cluster.counts()
        await simulation.after(600)
        assert simulation.cluster.counts()["apply_status", "diffusionrljobs"] <= 600 / APART.total_seconds() + 8
        assert len(simulation.attempts()) <= 1
    await simulation.after(60)
    assert simulation.attempts() == ["red-a02"]
    assert [failure.reason for failure in simulation.status().failures] == ["HeadLost"]
    assert simulation.condition("Ready").reason == "Starting"
