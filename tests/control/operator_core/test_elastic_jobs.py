"""Autoscaled pods of a job in a Kueue queue that lets their number change."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import pytest

from control.operator_core.pools import CLUSTER, KEY, Pools
from control.operator_core.queue import RAYJOB, Queue
from omni_operator.cluster.errors import Forbidden
from omni_operator.cluster.kinds import PODS, RAYCLUSTERS, RAYJOBS, WORKLOADS
from omni_operator.status.decisions.timeouts import Timeouts

ELASTIC = {"kueue.x-k8s.io/elastic-job": "true"}
GATES = [{"name": "kueue.x-k8s.io/elastic-job"}]
PAUSE = Timeouts().queue.total_seconds()
LIMITS = {"minReplicas": 2, "maxReplicas": 6, "stabilizationSeconds": 60}
ROLLOUT = {"placement": "Separate", "replicas": 3, "autoscaling": {**LIMITS, "samplesPerReplica": 10}}


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
        await self.queue.submit(annotations, rollout={**ROLLOUT, **rollout})
        await self.run(gated=gated)

    async def run(self, *, gated: bool = True) -> None:
        await self.queue.admit()
        spec = copy.deepcopy(self.queue.rayjob()["spec"]["rayClusterSpec"])
        for group in spec["workerGroupSpecs"]:
            group["template"]["spec"]["schedulingGates"] = GATES if gated else []
        self.simulation.cluster.change(RAYCLUSTERS, KEY[0], CLUSTER, spec=spec)
        self.pools.add("trainer")
        self.rollouts = [self.pools.add("rollout") for _ in range(self.requested())]
        await self.simulation.settle()

    async def report(self, samples: int) -> None:
        """The trainer reports how many samples wait."""
        self.simulation.report("heartbeat", **{"rollout/queued_samples": samples})
        await self.simulation.settle()

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
        group: dict[str, Any] = self.queue.rayjob()["spec"]["rayClusterSpec"]["workerGroupSpecs"][1]
        return group

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
def job(simulation: Any, pools: Pools) -> ElasticJob:
    return ElasticJob(simulation, pools, Queue(simulation))


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
    found = job.simulation.condition("RolloutsScaled")
    assert (found.status, found.reason) == ("False", "Unschedulable")
    assert found.message == f"pod {name}: waits for quota of its Kueue queue"
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
    job.simulation.cluster.failures = lambda verb, kind, name: (
        Forbidden("rayjobs is forbidden") if (verb, kind) == ("patch", RAYJOBS) else None
    )
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
    await job.queue.submit(ELASTIC, rollout={**ROLLOUT, "minReplicas": 2})
    job.simulation.run = job.simulation.start  # Ray does not run it yet
    await job.run()
    unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
    waiting = {"phase": "Pending", "conditions": [unscheduled, {"type": "Ready", "status": "False"}]}
    job.simulation.cluster.change(PODS, KEY[0], job.rollouts[0], status=waiting)
    await job.simulation.after(3 * PAUSE)
    assert (job.requested(), job.created(), job.patched()) == (3, 3, [])
