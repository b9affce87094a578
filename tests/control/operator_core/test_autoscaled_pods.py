"""Rollout and reward pods whose number follows what waits for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from control.operator_core.pools import CLUSTER, KEY, Pools
from omni_operator.cluster.kinds import JOBS, RAYCLUSTERS, RAYJOBS

LIMITS = {"minReplicas": 2, "maxReplicas": 6, "stabilizationSeconds": 60}


@dataclass(frozen=True, kw_only=True)
class Kind:
    """An autoscaled group of a job with three rollout and three reward pods.

    Attributes:
        index: its place among the worker groups.
        accelerators: of one of its pods, and those of all other pods of the job.
        field, queue: its names in the spec and in reports.
    """

    group: str
    index: int
    accelerators: tuple[int, int]
    condition: str
    field: str
    queue: str

    def spec(self) -> dict[str, Any]:
        """Fields of the job."""
        rollout: dict[str, Any] = {"placement": "Separate", "replicas": 3}
        judge: dict[str, Any] = {**rollout, "base": "org/judge", "accelerator": {"vendor": "NVIDIA", "count": 1}}
        if self.group == "rollout":
            rollout["autoscaling"] = {**LIMITS, "samplesPerReplica": 10}
        else:
            judge["autoscaling"] = {**LIMITS, "requestsPerReplica": 10}
        return {"rollout": rollout, "reward": {"scorers": [{"name": "genrm_ocr"}], "model": judge}}


@dataclass(frozen=True)
class Scaled:
    """A running job of a kind, in the simulation."""

    simulation: Any
    pools: Pools
    kind: Kind

    async def queue(self, number: int) -> None:
        """The trainer reports how much waits, and for the other group as much as its pods are for."""
        report = {"rollout/queued_samples": 30, "reward/queued_requests": 30, self.kind.queue: number}
        self.simulation.report("heartbeat", **report)
        await self.simulation.settle()

    def replicas(self) -> int:
        """Pods of the group; the other groups never change."""
        groups = self.pools.groups()
        name, number = groups.pop(self.kind.index)
        assert name == self.kind.group and [count for _, count in groups] == [1, 3]
        return number

    def condition(self) -> Any:
        return self.simulation.condition(self.kind.condition)

    def counts(self) -> Any:
        return getattr(self.simulation.status(), self.kind.group)


KINDS = (
    Kind(
        group="rollout",
        index=1,
        accelerators=(2, 2 + 3),
        condition="RolloutsScaled",
        field="spec.rollout.autoscaling",
        queue="rollout/queued_samples",
    ),
    Kind(
        group="reward",
        index=2,
        accelerators=(1, 2 + 6),
        condition="RewardsScaled",
        field="spec.reward.model.autoscaling",
        queue="reward/queued_requests",
    ),
)


@pytest.fixture(params=KINDS, ids=lambda kind: kind.group)
async def scaled(request: pytest.FixtureRequest, simulation: Any, pools: Pools) -> Scaled:
    await pools.run(**request.param.spec())
    for _ in range(3):
        pools.add("reward")
    await simulation.settle()
    return Scaled(simulation, pools, request.param)


async def test_pods_follow_the_queue_with_one_request_for_each_change(scaled: Scaled) -> None:
    found = scaled.condition()
    assert (found.status, found.reason) == ("Unknown", "NoReports")
    before = scaled.pools.patches()
    for number, wanted in ((20, 3), (45, 5), (5, 5), (0, 5)):
        await scaled.queue(number)
        assert scaled.replicas() == wanted
        await scaled.simulation.after(15)
    assert scaled.pools.patches() - before == 1
    assert (scaled.counts().desired, scaled.condition().message) == (5, f"5 {scaled.kind.group} pods")
    for _ in range(5):
        await scaled.queue(0)
        await scaled.simulation.after(15)
    assert (scaled.replicas(), scaled.pools.patches() - before) == (2, 2)
    assert len(scaled.pools.leaving(scaled.kind.index)) == 1, "KubeRay chooses none"
    counts = scaled.counts()
    assert (counts.desired, counts.ready, counts.updated) == (2, 3, 3), "the third one has not left yet"
    assert scaled.simulation.condition("Updated").reason == "AsRequested"
    assert scaled.simulation.attempts() == ["red-a01"]


async def test_accelerators_of_added_pods_are_counted(scaled: Scaled) -> None:
    await scaled.queue(60)
    before = scaled.simulation.status().usage.accelerator_seconds
    await scaled.simulation.after(400)
    await scaled.queue(60)
    each, others = scaled.kind.accelerators
    assert scaled.simulation.status().usage.accelerator_seconds - before == 400 * (6 * each + others)


async def test_added_pods_that_are_not_ready_are_missing(scaled: Scaled) -> None:
    await scaled.queue(60)
    ready = scaled.simulation.condition("Ready")
    assert ready.status == "True"
    assert ready.message == f"{scaled.kind.group} pods 3/6: KubeRay starts the others"


async def test_a_queue_that_needs_more_than_the_maximum_is_a_condition(scaled: Scaled) -> None:
    await scaled.queue(61)
    found = scaled.condition()
    assert (found.status, found.reason, scaled.replicas()) == ("False", "AtMaximum", 6)
    assert f"for each of 6 {scaled.kind.group} pods" in found.message
    assert f"{scaled.kind.field}.maxReplicas is 6" in found.message


async def test_a_quota_is_named_and_no_more_pods_are_asked_for(scaled: Scaled) -> None:
    text = "pods is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=2, limited: 8"
    simulation = scaled.simulation
    body = simulation.cluster.get(RAYCLUSTERS, KEY[0], CLUSTER)
    failure = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreateWorkerPod", "message": text}
    status = {**body["status"], "conditions": [*body["status"]["conditions"], failure]}
    simulation.cluster.change(RAYCLUSTERS, KEY[0], CLUSTER, status=status)
    await simulation.settle()
    await scaled.queue(60)
    found = scaled.condition()
    assert (found.status, found.reason, found.message) == ("False", "QuotaExceeded", text)
    assert scaled.replicas() == 3
    await simulation.after(120)
    await scaled.queue(0)
    assert scaled.replicas() == 2, "fewer are always possible"


async def test_a_pod_without_a_node_keeps_others_of_its_group_from_being_asked_for(scaled: Scaled) -> None:
    unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
    waiting = {"phase": "Pending", "conditions": [unscheduled]}
    other = "reward" if scaled.kind.group == "rollout" else "rollout"
    scaled.pools.add(other, waiting)
    await scaled.simulation.settle()
    await scaled.queue(40)
    assert scaled.replicas() == 4, "the other group has nodes of its own"
    name = scaled.pools.add(scaled.kind.group, waiting)
    await scaled.simulation.settle()
    await scaled.queue(60)
    found = scaled.condition()
    assert (found.reason, found.message) == ("Unschedulable", f"pod {name}: 0/3 nodes")
    assert scaled.replicas() == 4


async def test_in_a_queue_autoscaling_says_that_it_does_nothing(scaled: Scaled) -> None:
    scaled.simulation.cluster.change(JOBS, *KEY, metadata={"labels": {"kueue.x-k8s.io/queue-name": "q"}})
    await scaled.queue(60)
    found = scaled.condition()
    assert (found.status, found.reason, scaled.replicas()) == ("False", "InQueue", 3)


async def test_an_operator_that_starts_again_removes_no_pods_before_a_whole_window(scaled: Scaled) -> None:
    await scaled.queue(60)
    scaled.simulation.start_operator()
    for number in (0, 0, 0, 0):
        await scaled.queue(number)
        assert scaled.replicas() == 6
        await scaled.simulation.after(15)
    await scaled.queue(0)
    assert scaled.replicas() == 2


async def test_other_limits_are_no_change_for_the_next_attempt(scaled: Scaled) -> None:
    await scaled.queue(60)
    digest = scaled.simulation.cluster.get(RAYJOBS, KEY[0], "red-a01")["metadata"]["annotations"]
    spec = scaled.kind.spec()
    owner = spec["rollout"] if scaled.kind.group == "rollout" else spec["reward"]["model"]
    owner["autoscaling"] |= {"maxReplicas": 4}
    scaled.simulation.edit(**spec)
    await scaled.simulation.settle()
    assert (scaled.replicas(), scaled.simulation.condition("Updated").reason) == (4, "AsRequested")
    assert scaled.simulation.cluster.get(RAYJOBS, KEY[0], "red-a01")["metadata"]["annotations"] == digest


async def test_without_autoscaling_the_conditions_say_so(simulation: Any, pools: Pools) -> None:
    await pools.run()
    for kind in KINDS:
        found = simulation.condition(kind.condition)
        assert (found.status, found.reason, found.message) == ("Unknown", "NotAutoscaled", f"{kind.field} is not given")
    assert simulation.status().reward is None, "there are no reward pods"
