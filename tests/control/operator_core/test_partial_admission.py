"""Jobs in a Kueue queue that has no room for all of their rollout pods."""

from __future__ import annotations

from typing import Any

import pytest

from control.operator_core.queue import KEY, NO_ROOM, RAYJOB, ROLLOUT, Queue
from control.operator_core.test_ownership import webhook
from omni_operator.cluster.errors import Forbidden
from omni_operator.cluster.kinds import JOBS, RAYJOBS, WORKLOADS
from omni_operator.status.decisions.partial_admission import RECHECK
from omni_operator.status.decisions.timeouts import Timeouts

PAUSE = Timeouts().queue.total_seconds()


@pytest.fixture
def queue(simulation: Any) -> Queue:
    return Queue(simulation)


async def ask_on(queue: Queue, pauses: int) -> list[int]:
    """The numbers of rollout pods that the attempt asks for, after each pause of the first round."""
    found = []
    for _ in range(pauses):
        await queue.simulation.after(PAUSE)
        found.append(queue.asked())
    return found


async def test_a_queued_attempt_asks_for_fewer_rollout_pods_down_to_the_minimum_and_then_for_all_again(
    queue: Queue,
) -> None:
    await queue.submit()
    assert queue.asked() == 4
    assert await ask_on(queue, 3) == [3, 2, 4]
    await queue.simulation.after(PAUSE)
    assert queue.asked() == 4  # the pauses of the second round are twice as long
    assert "), which asks for 4 of 4 rollout pods (" in queue.simulation.condition("Admitted").message
    await queue.simulation.after(PAUSE)
    assert queue.asked() == 3


async def test_the_trainer_and_the_status_have_the_number_that_was_admitted(queue: Queue) -> None:
    await queue.submit()
    await ask_on(queue, 2)
    await queue.admit()
    rayjob = queue.rayjob()
    trainer, _ = rayjob["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    files = "".join(trainer["template"]["metadata"]["annotations"].values())
    for text in (rayjob["spec"]["entrypoint"], files):
        assert text.count("actor_rollout_ref.rollout.nnodes=2") == 1 and "rollout.nnodes=4" not in text
    status = queue.simulation.status()
    admitted = queue.simulation.condition("Admitted")
    assert status.rollout.desired == 2 and queue.simulation.condition("Updated").reason == "AsRequested"
    assert (admitted.status, admitted.reason) == ("True", "PartiallyAdmitted")
    assert admitted.message.startswith("admitted with 2 of 4 rollout pods")
    assert queue.simulation.event_reasons().count("PartiallyAdmitted") == 1
    await queue.simulation.after(100 * PAUSE)
    assert queue.asked() == 2  # what runs is not changed


@pytest.mark.parametrize("rollout", [{**ROLLOUT, "minReplicas": None}, {**ROLLOUT, "minReplicas": 4}])
async def test_without_a_smaller_minimum_all_pods_are_asked_for(queue: Queue, rollout: dict[str, Any]) -> None:
    await queue.submit(rollout=rollout)
    await queue.simulation.after(100 * PAUSE)
    assert queue.asked() == 4
    await queue.admit()
    assert queue.simulation.condition("Admitted").reason == "ChildUnsuspended"


@pytest.mark.parametrize(
    "state",
    [
        {"reserved": "True", "reason": "QuotaReserved"},  # an admission check may take long
        {"message": f"{NO_ROOM}. Pending the preemption of 2 workload(s)"},
        {"reason": "Inadmissible", "message": "LocalQueue team-a doesn't exist"},
        {"reason": ""},  # not tried yet
    ],
)
async def test_nothing_is_changed_while_the_workload_does_not_wait_for_quota(
    queue: Queue, state: dict[str, str]
) -> None:
    await queue.submit()
    queue.wait(**state)
    await queue.simulation.after(20 * PAUSE)
    assert queue.asked() == 4 and ("patch", "rayjobs") not in queue.simulation.cluster.log
    queue.wait()
    await queue.simulation.after(PAUSE)
    assert queue.asked() == 3


@pytest.mark.parametrize("found", ["no Kueue", "no Workload", "a Workload that an administrator stopped"])
async def test_nothing_is_changed_unless_kueue_decides(queue: Queue, found: str) -> None:
    await queue.submit()
    match found:
        case "no Kueue":
            queue.simulation.cluster.absent.add(WORKLOADS)
        case "no Workload":
            queue.simulation.cluster.remove(WORKLOADS, KEY[0], f"rayjob-{RAYJOB}")
        case _:
            queue.simulation.cluster.change(WORKLOADS, KEY[0], f"rayjob-{RAYJOB}", spec={"active": False})
    await queue.simulation.after(20 * PAUSE)
    assert queue.asked() == 4 and queue.simulation.condition("Admitted").reason == "Queued"
    queue.simulation.cluster.absent.clear()
    if found == "no Workload":
        queue.make_workload()
    await queue.admit()
    assert queue.simulation.condition("Ready").reason != "KubeRayNotInstalled"


async def test_a_job_that_kueue_suspends_at_its_creation_is_never_shown_as_admitted(queue: Queue) -> None:
    simulation = queue.simulation
    webhook(simulation, lambda body: body.update(spec={**body["spec"], "suspend": True}))
    shown = []
    simulation.reconciler.written = lambda kind, body: shown.append(body) if kind == JOBS else None
    simulation.submit()
    await simulation.settle()
    conditions = [one for body in shown for one in body["status"]["conditions"] if one["type"] == "Admitted"]
    assert {(one["status"], one["reason"]) for one in conditions} == {("False", "Queued")}


async def test_the_condition_has_kueues_reason_which_is_read_once_a_minute(queue: Queue) -> None:
    await queue.submit(rollout={**ROLLOUT, "minReplicas": 4})
    admitted = queue.simulation.condition("Admitted")
    assert (admitted.status, admitted.reason) == ("False", "Queued")
    assert admitted.message.endswith(f"Kueue says Pending: {NO_ROOM}")
    queue.wait(message="LocalQueue team-a is inactive")
    reads = queue.simulation.cluster.log.count(("list", "workloads"))
    await queue.simulation.after(600)
    assert queue.simulation.condition("Admitted").message.endswith("LocalQueue team-a is inactive")
    assert 9 <= queue.simulation.cluster.log.count(("list", "workloads")) - reads <= 11
    await queue.admit()
    assert "Kueue" not in queue.simulation.condition("Admitted").message
    reads = queue.simulation.cluster.log.count(("list", "workloads"))
    await queue.simulation.after(600)
    assert queue.simulation.cluster.log.count(("list", "workloads")) == reads
    await queue.preempt()
    assert "Preempted to accommodate" in queue.simulation.condition("Admitted").message


async def test_an_operator_without_the_right_to_see_workloads_says_so(queue: Queue) -> None:
    await queue.submit()
    queue.simulation.cluster.failures = lambda verb, kind, name: (
        Forbidden("workloads is forbidden") if kind == WORKLOADS else None
    )
    await queue.simulation.after(PAUSE)
    ready = queue.simulation.condition("Ready")
    assert (ready.status, ready.reason) == ("False", "Forbidden") and "workloads is forbidden" in ready.message
    assert queue.simulation.status().state == "Queued" and queue.asked() == 4
    queue.simulation.cluster.failures = lambda verb, kind, name: None
    await queue.admit()
    await queue.simulation.after(300)
    assert queue.simulation.condition("Ready").reason != "Forbidden"


async def test_a_preempted_attempt_asks_for_all_pods_again_with_short_pauses(queue: Queue) -> None:
    await queue.submit()
    await queue.simulation.after(40 * PAUSE)  # in a later round
    while queue.asked() != 2:
        await queue.simulation.after(PAUSE)
    await queue.admit()
    await queue.simulation.after(1000)
    await queue.preempt()
    assert queue.asked() == 4 and queue.simulation.status().attempts == 1
    assert await ask_on(queue, 3) == [3, 2, 4]


async def test_a_preempted_attempt_changes_nothing_before_its_pods_and_its_reservation_are_gone(queue: Queue) -> None:
    await queue.submit()
    await ask_on(queue, 2)
    await queue.admit()
    await queue.simulation.after(1000)
    queue.wait()
    queue.simulation.cluster.change(
        RAYJOBS, KEY[0], RAYJOB, spec={"suspend": True}, status={"jobDeploymentStatus": "Suspending"}
    )
    await queue.simulation.after(10 * PAUSE)
    assert queue.asked() == 2 and queue.simulation.condition("Admitted").reason == "Queued"
    queue.wait("True", "QuotaReserved")
    await queue.simulation.after(10 * PAUSE)
    assert queue.asked() == 2
    queue.wait()
    await queue.simulation.after(RECHECK.total_seconds())
    assert queue.asked() == 4


async def test_the_next_attempt_asks_for_all_pods(queue: Queue) -> None:
    await queue.submit(backoffLimit=1)
    await ask_on(queue, 2)
    await queue.admit()
    queue.simulation.end(1, "FAILED", "AppFailed", "exit code 1")
    await queue.simulation.after(60)
    assert queue.simulation.attempts()[-1] == "red-a02" and queue.asked("red-a02") == 4


async def test_another_operator_goes_on_where_the_last_one_was_stopped(queue: Queue) -> None:
    await queue.submit()
    asked = []
    for _ in range(4):
        await queue.simulation.after(PAUSE)
        queue.simulation.start_operator()
        await queue.simulation.settle()
        asked.append(queue.asked())
    assert asked == [3, 2, 4, 4]


async def test_an_edited_job_that_waits_asks_anew_as_it_was_edited(queue: Queue) -> None:
    await queue.submit()
    queue.simulation.edit(rollout={**ROLLOUT, "replicas": 8, "minReplicas": 1})
    await queue.simulation.settle()
    assert (queue.simulation.attempts(), queue.asked("red-a02")) == (["red-a02"], 8)


async def test_the_queue_may_admit_the_attempt_in_the_moment_of_the_change(queue: Queue) -> None:
    await queue.submit()

    def admit(verb: str, kind: Any, name: str) -> None:
        if (verb, kind) == ("list", WORKLOADS):  # after the operator has read the RayJob
            queue.simulation.cluster.change(RAYJOBS, KEY[0], RAYJOB, spec={"suspend": False})
        return

    queue.simulation.cluster.failures = admit
    await queue.simulation.after(PAUSE + 5)
    assert queue.asked() == 4 and not queue.rayjob()["spec"]["suspend"]
    queue.simulation.cluster.failures = lambda verb, kind, name: None
    await queue.admit()
    assert queue.simulation.condition("Admitted").reason == "ChildUnsuspended"


async def test_a_change_takes_few_reads_and_two_writes_and_a_long_wait_few(queue: Queue) -> None:
    await queue.submit()
    queue.simulation.cluster.counts()
    await queue.simulation.after(PAUSE)
    assert queue.asked() == 3
    assert dict(queue.simulation.cluster.counts()) == {
        ("get", "rayjobs"): 1,
        ("list", "workloads"): 1 + int(PAUSE) // 60,
        ("patch", "rayjobs"): 1,
        ("apply_status", "diffusionrljobs"): 1,
    }
    await queue.simulation.after(100 * PAUSE)
    queue.simulation.cluster.counts()
    await queue.simulation.after(80 * PAUSE)
    assert queue.simulation.cluster.counts()["patch", "rayjobs"] == 10  # one in eight pauses


async def test_a_rayjob_that_someone_else_has_scaled_is_left_alone_and_not_read_all_the_time(queue: Queue) -> None:
    await queue.submit()
    groups = queue.rayjob()["spec"]["rayClusterSpec"]
    groups["workerGroupSpecs"][1] |= {"replicas": 1, "minReplicas": 1, "maxReplicas": 1}
    queue.simulation.cluster.change(RAYJOBS, KEY[0], RAYJOB, spec={"rayClusterSpec": groups})
    queue.simulation.cluster.counts()
    await queue.simulation.after(10 * PAUSE)
    counts = queue.simulation.cluster.counts()
    assert queue.asked() == 1 and counts["patch", "rayjobs"] == 0 and counts["get", "rayjobs"] <= 20


async def test_annotations_that_someone_has_broken_stop_nothing(queue: Queue) -> None:
    await queue.submit()
    broken = {"diffusionrl.io/asked": "yesterday x", "diffusionrl.io/pods": "{}"}
    queue.simulation.cluster.change(RAYJOBS, KEY[0], RAYJOB, metadata={"annotations": broken})
    await queue.simulation.after(10 * PAUSE)
    assert queue.asked() == 4
    await queue.admit()
    assert queue.simulation.condition("Admitted").status == "True"
    assert queue.simulation.cluster.get(JOBS, *KEY) is not None
