"""Jobs in a Kueue queue: without room for all rollout pods, in a default queue, and with autoscaled pods."""

import copy
from dataclasses import dataclass
from typing import Any

import pytest

from control.operator_core.pools import CLUSTER, KEY, NO_ROOM, QUEUED, RAYJOB, ROLLOUT, Pools, Queue
from omni_operator.cluster.errors import Forbidden, ServerError
from omni_operator.cluster.kinds import JOBS, PODS, RAYCLUSTERS, RAYJOBS, WORKLOADS
from omni_operator.status.decisions.queue_requests import RECHECK
from omni_operator.status.decisions.timeouts import Timeouts

PAUSE = Timeouts().queue.total_seconds()


async def ask_on(queue: Queue, pauses: int) -> list[int]:
    """The numbers of rollout pods that the attempt asks for, after each pause of the first round."""
    numbers = []
    for _ in range(pauses):
        await queue.simulation.after(PAUSE)
        numbers.append(queue.asked())
    return numbers


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


@pytest.mark.parametrize("rollout", [{**QUEUED, "minReplicas": None}, {**QUEUED, "minReplicas": 4}])
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
    simulation.alter(lambda body: body.update(spec={**body["spec"], "suspend": True}))
    shown = []
    simulation.written = lambda kind, body: shown.append(body) if kind == JOBS else None
    await simulation.submit_and_settle()
    conditions = [
        condition for body in shown for condition in body["status"]["conditions"] if condition["type"] == "Admitted"
    ]
    assert {(condition["status"], condition["reason"]) for condition in conditions} == {("False", "Queued")}


async def test_the_condition_has_kueues_reason_which_is_read_once_a_minute(queue: Queue) -> None:
    await queue.submit(rollout={**QUEUED, "minReplicas": 4})
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
    queue.simulation.refuse(Forbidden("workloads is forbidden"), WORKLOADS)
    await queue.simulation.after(PAUSE)
    assert queue.simulation.verdict("Ready") == ("False", "Forbidden")
    assert queue.simulation.status().state == "Queued" and queue.asked() == 4
    queue.simulation.allow()
    await queue.admit()
    await queue.simulation.after(300)
    assert queue.simulation.condition("Ready").reason != "Forbidden"


async def test_workloads_that_cannot_be_read_delay_no_job_and_are_named(queue: Queue) -> None:
    """While Kueue is down, so is the webhook by which the API server converts Workloads to another version."""
    failed = "conversion webhook for kueue.x-k8s.io failed: connection refused"
    queue.simulation.refuse(ServerError(failed, request="list workloads"), WORKLOADS, "list")
    await queue.submit(rollout={**QUEUED, "minReplicas": 4})
    assert queue.simulation.status().state == "Queued"
    assert queue.simulation.condition("Admitted").message.endswith(f"Its Workload cannot be read: {failed}")
    reads = queue.simulation.cluster.log.count(("list", "workloads"))
    await queue.simulation.after(600)
    assert 9 <= queue.simulation.cluster.log.count(("list", "workloads")) - reads <= 11
    await queue.admit()
    assert queue.simulation.condition("Admitted").reason == "ChildUnsuspended"


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
    queue.simulation.change(RAYJOBS, spec={"suspend": True}, status={"jobDeploymentStatus": "Suspending"})
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
    await queue.simulation.edit_and_settle(rollout={**QUEUED, "replicas": 8, "minReplicas": 1})
    assert (queue.simulation.attempts(), queue.asked("red-a02")) == (["red-a02"], 8)


async def test_the_queue_may_admit_the_attempt_in_the_moment_of_the_change(queue: Queue) -> None:
    await queue.submit()

    def admit(verb: str, kind: Any, name: str) -> None:
        if (verb, kind) == ("list", WORKLOADS):  # after the operator has read the RayJob
            queue.simulation.change(RAYJOBS, spec={"suspend": False})
        return

    queue.simulation.cluster.failures = admit
    await queue.simulation.after(PAUSE + 5)
    assert queue.asked() == 4 and not queue.rayjob()["spec"]["suspend"]
    queue.simulation.allow()
    await queue.admit()
    assert queue.simulation.condition("Admitted").reason == "ChildUnsuspended"


async def test_a_change_takes_few_reads_and_two_writes_and_a_long_wait_few(queue: Queue) -> None:
    await queue.submit()
    requests = await queue.simulation.requests_in(PAUSE)
    assert queue.asked() == 3
    assert requests == {
        ("get", "rayjobs"): 1,
        ("list", "workloads"): 1 + int(PAUSE) // 60,
        ("patch", "rayjobs"): 1,
        ("apply_status", "diffusionrljobs"): 1,
    }
    await queue.simulation.after(100 * PAUSE)
    assert (await queue.simulation.requests_in(80 * PAUSE))["patch", "rayjobs"] == 10  # one in eight pauses


async def test_a_rayjob_that_someone_else_has_scaled_is_left_alone_and_not_read_all_the_time(queue: Queue) -> None:
    await queue.submit()
    groups = queue.rayjob()["spec"]["rayClusterSpec"]
    groups["workerGroupSpecs"][1] |= {"replicas": 1, "minReplicas": 1, "maxReplicas": 1}
    queue.simulation.change(RAYJOBS, spec={"rayClusterSpec": groups})
    requests = await queue.simulation.requests_in(10 * PAUSE)
    assert queue.asked() == 1 and requests["patch", "rayjobs"] == 0 and requests["get", "rayjobs"] <= 20


async def test_annotations_that_someone_has_broken_stop_nothing(queue: Queue) -> None:
    await queue.submit()
    broken = {"diffusionrl.io/asked": "yesterday x", "diffusionrl.io/pods": "{}"}
    queue.simulation.change(RAYJOBS, metadata={"annotations": broken})
    await queue.simulation.after(10 * PAUSE)
    assert queue.asked() == 4
    await queue.admit()
    assert queue.simulation.condition("Admitted").status == "True"
    assert queue.simulation.cluster.get(JOBS, *KEY) is not None


IMAGE = {"podTemplate": {"spec": {"containers": [{"name": "ray", "image": "rollout:2"}]}}}


@pytest.mark.parametrize("change", [{"replicas": 4}, IMAGE, {**IMAGE, "replicas": 2}])
async def test_the_pods_that_a_default_queue_admitted_stay(
    simulation: Any, pools: Pools, change: dict[str, Any]
) -> None:
    """The RayJob of a job that names no queue got its label when it was created."""
    await pools.run()
    label = {"labels": {"kueue.x-k8s.io/queue-name": "default"}}
    simulation.change(RAYJOBS, metadata=label)
    await pools.report()
    before = simulation.cluster.get(RAYCLUSTERS, KEY[0], CLUSTER)["spec"]
    assert simulation.condition("Updated").reason == "AsRequested"
    simulation.edit(rollout={**ROLLOUT, **change})
    await simulation.after(60)
    assert simulation.cluster.get(RAYCLUSTERS, KEY[0], CLUSTER)["spec"] == before and pools.patches() == 0
    assert simulation.condition("Updated").reason == "NextAttempt" and simulation.status().rollout.desired == 3
    simulation.edit(rollout={"replicas": 3, "podTemplate": None})
    await simulation.after(60)
    assert simulation.condition("Updated").reason == "AsRequested"


ELASTIC = {"kueue.x-k8s.io/elastic-job": "true"}
GATES = [{"name": "kueue.x-k8s.io/elastic-job"}]
LIMITS = {"minReplicas": 2, "maxReplicas": 6, "stabilizationSeconds": 60}
AUTOSCALED = {"placement": "Separate", "replicas": 3, "autoscaling": {**LIMITS, "samplesPerReplica": 10}}


@dataclass
class ElasticJob:
    """A job in a queue, in the simulation."""

    simulation: Any
    pools: Pools
    queue: Queue

    async def start(self, *, gated: bool = True, annotations: dict[str, str] = ELASTIC, **rollout: Any) -> None:
        """The queue admits it, its pods are ready and Ray runs it.

        Args:
            gated: whether Kueue's webhook has added its gate to the pod templates of the RayCluster.
        """
        await self.queue.submit(annotations, rollout={**AUTOSCALED, **rollout})
        await self.run(gated=gated)

    async def run(self, *, gated: bool = True) -> None:
        await self.queue.admit()
        spec = copy.deepcopy(self.queue.rayjob()["spec"]["rayClusterSpec"])
        for group in spec["workerGroupSpecs"]:
            group["template"]["spec"]["schedulingGates"] = GATES if gated else []
        self.simulation.change(RAYCLUSTERS, spec=spec)
        self.pools.add("trainer")
        self.rollouts = [self.pools.add("rollout") for _ in range(self.requested())]
        await self.simulation.settle()

    async def report(self, samples: int) -> None:
        """The trainer reports how many samples wait."""
        await self.simulation.report_and_settle("heartbeat", **{"rollout/queued_samples": samples})

    async def add_gated(self) -> str:
        """KubeRay creates a rollout pod, which waits for quota."""
        name = self.pools.add("rollout", {"phase": "Pending"})
        self.simulation.cluster.change(PODS, KEY[0], name, spec={"schedulingGates": GATES})
        await self.simulation.settle()
        return name

    async def remove(self, *names: str) -> None:
        """KubeRay deletes pods."""
        for name in names:
            self.simulation.cluster.remove(PODS, KEY[0], name)
        await self.simulation.settle()

    def replace_workload(self) -> None:
        """Kueue has made another Workload for more pods, and keeps the one before, which is finished."""
        body = copy.deepcopy(self.simulation.cluster.get(WORKLOADS, KEY[0], f"rayjob-{RAYJOB}"))
        done = [
            {"type": kind, "status": "True", "reason": "R", "message": ""} for kind in ("QuotaReserved", "Finished")
        ]
        meta = {"namespace": KEY[0], "name": "replaced", "labels": body["metadata"]["labels"]}
        self.simulation.cluster.make({**body, "metadata": meta, "status": {"conditions": done}})

    def group(self) -> dict[str, Any]:
        """The rollout group of the RayJob."""
        return self.queue.rayjob()["spec"]["rayClusterSpec"]["workerGroupSpecs"][1]

    def requested(self) -> int:
        """Rollout pods that the RayJob asks quota for."""
        return int(self.group()["replicas"])

    def created(self) -> int:
        """Rollout pods of the RayCluster."""
        name, number = self.pools.groups()[1]
        assert name == "rollout"
        return number

    def patched(self) -> list[str]:
        """Kinds of the objects that the operator has changed."""
        return [kind for verb, kind in self.simulation.cluster.log if verb == "patch" and kind.startswith("ray")]


@pytest.fixture
def job(simulation: Any, pools: Pools, queue: Queue) -> ElasticJob:
    return ElasticJob(simulation, pools, queue)


async def test_quota_is_requested_before_pods_are_added_and_returned_when_they_are_gone(job: ElasticJob) -> None:
    await job.start()
    await job.report(45)
    assert (job.requested(), job.created(), job.patched()) == (5, 5, ["rayjobs", "rayclusters"])
    assert (job.group()["minReplicas"], job.group()["maxReplicas"]) == (1, 1024)
    job.rollouts += [job.pools.add("rollout"), job.pools.add("rollout")]
    await job.simulation.settle()
    assert job.simulation.condition("RolloutsScaled").message == "5 rollout pods"
    for _ in range(6):
        await job.simulation.after(15)
        await job.report(0)
    assert (job.requested(), job.created()) == (5, 2), "three pods are still there"
    leaving = job.pools.leaving()
    await job.remove(*leaving[:2])
    assert (len(leaving), job.requested()) == (3, 5)
    await job.remove(leaving[2])
    assert (job.requested(), job.created()) == (2, 2)
    assert job.patched() == ["rayjobs", "rayclusters", "rayclusters", "rayjobs"]
    assert job.simulation.condition("Updated").reason == "AsRequested"
    assert job.simulation.attempts() == [RAYJOB]


async def test_pods_that_wait_for_quota_are_a_condition_and_no_more_are_asked_for(job: ElasticJob) -> None:
    await job.start()
    await job.report(35)
    name = await job.add_gated()
    condition = job.simulation.condition("RolloutsScaled")
    assert (condition.status, condition.reason) == ("False", "Unschedulable")
    assert condition.message == f"pod {name}: waits for quota of its Kueue queue"
    assert job.simulation.condition("Ready").reason == "RolloutsMissing"
    await job.report(60)
    assert (job.requested(), job.created()) == (4, 4)
    for _ in range(6):
        await job.simulation.after(15)
        await job.report(25)
    assert (job.created(), job.pools.leaving()) == (3, [name]), "the pod that has done nothing leaves"
    await job.remove(name)
    assert (job.requested(), job.simulation.status().state) == (3, "Running")


@pytest.mark.parametrize("without", [{"gated": False}, {"annotations": {}}])
async def test_where_kueue_does_not_hold_pods_back_their_number_stays(job: ElasticJob, without: dict[str, Any]) -> None:
    await job.start(**without)
    await job.report(60)
    assert (job.created(), job.patched()) == (3, [])
    assert job.simulation.condition("RolloutsScaled").reason == "InQueue"


async def test_while_the_spec_is_invalid_the_number_stays(job: ElasticJob) -> None:
    await job.start()
    job.simulation.edit(trainer={"totalSteps": 0})
    await job.report(60)
    assert (job.requested(), job.created(), job.patched()) == (3, 3, [])


async def test_a_request_that_is_refused_adds_no_pods(job: ElasticJob) -> None:
    await job.start()
    job.simulation.refuse(Forbidden("rayjobs is forbidden"), RAYJOBS, "patch")
    await job.report(60)
    assert (job.requested(), job.created()) == (3, 3)
    assert job.simulation.condition("Ready").reason == "Forbidden"


async def test_a_preempted_attempt_asks_for_the_pods_of_its_start_again(job: ElasticJob) -> None:
    await job.start()
    await job.report(60)
    assert job.requested() == 6
    job.replace_workload()
    await job.simulation.after(1)
    await job.queue.preempt()
    assert (job.group()["replicas"], job.group()["minReplicas"], job.group()["maxReplicas"]) == (3, 3, 3)
    assert "insufficient" not in job.simulation.condition("Admitted").message
    await job.run()
    assert job.created() == 3 and job.simulation.attempts() == [RAYJOB]
    await job.report(45)
    assert (job.requested(), job.created()) == (5, 5)


async def test_a_preempted_attempt_then_asks_for_fewer_rollout_pods(job: ElasticJob) -> None:
    await job.start(minReplicas=2)
    await job.report(60)
    await job.simulation.after(1)
    await job.queue.preempt()
    assert job.queue.asked() == 3
    await job.simulation.after(PAUSE)
    assert job.queue.asked() == 2
    await job.run()
    assert (job.created(), job.simulation.condition("Admitted").reason) == (2, "PartiallyAdmitted")


async def test_an_attempt_that_starts_keeps_the_pods_that_the_queue_has_admitted(job: ElasticJob) -> None:
    await job.queue.submit(ELASTIC, rollout={**AUTOSCALED, "minReplicas": 2})
    job.simulation.run = job.simulation.start  # Ray does not run it yet
    await job.run()
    unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
    waiting = {"phase": "Pending", "conditions": [unscheduled, {"type": "Ready", "status": "False"}]}
    job.simulation.cluster.change(PODS, KEY[0], job.rollouts[0], status=waiting)
    await job.simulation.after(3 * PAUSE)
    assert (job.requested(), job.created(), job.patched()) == (3, 3, [])
