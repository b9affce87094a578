"""Rollout and reward pods whose number follows what waits for them, and the requests that a change takes."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest

from control.operator_core.pools import CLUSTER, KEY, PLACES, RAYJOB, Pools, spec_of, unscheduled
from omni_operator.cluster.kinds import JOBS, RAYCLUSTERS, RAYJOBS

SHARES = {"rollout": "samplesPerReplica", "reward": "requestsPerReplica"}
QUEUES = {"rollout": "rollout/queued_samples", "reward": "reward/queued_requests"}


def autoscaled(pool: str, **limits: int) -> dict[str, Any]:
    """The parts of a spec, one of whose pools is autoscaled."""
    autoscaling = {"minReplicas": 2, "maxReplicas": 6, "stabilizationSeconds": 60, SHARES[pool]: 10, **limits}
    return spec_of(pool, autoscaling=autoscaling)


@dataclass(frozen=True)
class Scaled:
    """A running job with an autoscaled pool, in the simulation."""

    simulation: Any
    pools: Pools
    pool: str

    async def queue(self, number: int) -> None:
        """The trainer reports how much waits, and for the other pool as much as its pods are for."""
        await self.simulation.report_and_settle(
            "heartbeat", **dict.fromkeys(QUEUES.values(), 30) | {QUEUES[self.pool]: number}
        )

    def replicas(self) -> int:
        """Pods of the pool; the other groups never change."""
        groups = self.pools.groups()
        name, number = groups.pop(PLACES[self.pool])
        assert name == self.pool and [count for _, count in groups] == [1, 3]
        return number

    def condition(self) -> Any:
        return self.simulation.condition("RolloutsScaled" if self.pool == "rollout" else "RewardsScaled")

    def counts(self) -> Any:
        return getattr(self.simulation.status(), self.pool)


@pytest.fixture(params=PLACES)
async def scaled(request: pytest.FixtureRequest, simulation: Any, pools: Pools) -> Scaled:
    await pools.run_both(**autoscaled(request.param))
    return Scaled(simulation, pools, request.param)


async def test_pods_follow_the_queue_with_one_request_for_each_change(scaled: Scaled) -> None:
    assert scaled.condition().reason == "NoReports"
    before = scaled.pools.patches()
    for number, wanted in ((20, 3), (45, 5), (5, 5), (0, 5)):
        await scaled.queue(number)
        assert scaled.replicas() == wanted
        await scaled.simulation.after(15)
    assert scaled.pools.patches() - before == 1
    assert (scaled.counts().desired, scaled.condition().message) == (5, f"5 {scaled.pool} pods")
    for _ in range(5):
        await scaled.queue(0)
        await scaled.simulation.after(15)
    assert (scaled.replicas(), scaled.pools.patches() - before) == (2, 2)
    assert len(scaled.pools.leaving(PLACES[scaled.pool])) == 1, "KubeRay chooses none"
    counts = scaled.counts()
    assert (counts.desired, counts.ready, counts.updated) == (2, 3, 3), "the third one has not left yet"
    assert scaled.simulation.condition("Updated").reason == "AsRequested"
    assert scaled.simulation.attempts() == ["red-a01"]


async def test_a_queue_that_needs_more_than_the_maximum_is_a_condition(scaled: Scaled) -> None:
    await scaled.queue(61)
    condition = scaled.condition()
    assert (condition.status, condition.reason, scaled.replicas()) == ("False", "AtMaximum", 6)
    assert f"for each of 6 {scaled.pool} pods" in condition.message
    assert ".autoscaling.maxReplicas is 6" in condition.message


async def test_a_quota_is_named_and_no_more_pods_are_asked_for(scaled: Scaled) -> None:
    text = "pods is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=2, limited: 8"
    simulation = scaled.simulation
    body = simulation.cluster.get(RAYCLUSTERS, KEY[0], CLUSTER)
    failure = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreateWorkerPod", "message": text}
    status = {**body["status"], "conditions": [*body["status"]["conditions"], failure]}
    simulation.change(RAYCLUSTERS, status=status)
    await simulation.settle()
    await scaled.queue(60)
    condition = scaled.condition()
    assert (condition.status, condition.reason, condition.message) == ("False", "QuotaExceeded", text)
    assert scaled.replicas() == 3
    await simulation.after(120)
    await scaled.queue(0)
    assert scaled.replicas() == 2, "fewer are always possible"


async def test_a_pod_without_a_node_keeps_others_of_its_group_from_being_asked_for(scaled: Scaled) -> None:
    waiting = unscheduled("0/3 nodes")
    other_pool = "reward" if scaled.pool == "rollout" else "rollout"
    scaled.pools.add(other_pool, waiting)
    await scaled.simulation.settle()
    await scaled.queue(40)
    assert scaled.replicas() == 4, "the other group has its own nodes"
    name = scaled.pools.add(scaled.pool, waiting)
    await scaled.simulation.settle()
    await scaled.queue(60)
    condition = scaled.condition()
    assert (condition.reason, condition.message) == ("Unschedulable", f"pod {name}: 0/3 nodes")
    assert scaled.replicas() == 4


async def test_in_a_queue_autoscaling_says_that_it_does_nothing(scaled: Scaled) -> None:
    scaled.simulation.cluster.change(JOBS, *KEY, metadata={"labels": {"kueue.x-k8s.io/queue-name": "q"}})
    await scaled.queue(60)
    condition = scaled.condition()
    assert (condition.status, condition.reason, scaled.replicas()) == ("False", "InQueue", 3)


async def test_other_limits_are_no_change_for_the_next_attempt(scaled: Scaled) -> None:
    await scaled.queue(60)
    digest = scaled.simulation.cluster.get(RAYJOBS, KEY[0], "red-a01")["metadata"]["annotations"]
    await scaled.simulation.edit_and_settle(**autoscaled(scaled.pool, maxReplicas=4))
    assert (scaled.replicas(), scaled.simulation.condition("Updated").reason) == (4, "AsRequested")
    assert scaled.simulation.cluster.get(RAYJOBS, KEY[0], "red-a01")["metadata"]["annotations"] == digest


IMAGE = {"podTemplate": {"spec": {"containers": [{"name": "ray", "image": "image:2"}]}}}


@pytest.mark.parametrize("pool", PLACES)
@pytest.mark.parametrize("replicas", [2, 9])
async def test_a_change_of_the_number_takes_two_requests(
    simulation: Any, pools: Pools, pool: str, replicas: int
) -> None:
    await pools.run_both()
    simulation.cluster.counts()
    await simulation.edit_and_settle(**spec_of(pool, replicas=replicas))
    assert pools.groups()[PLACES[pool]] == (pool, replicas)
    assert getattr(simulation.status(), pool).desired == replicas
    assert simulation.cluster.counts() == Counter({("patch", "rayclusters"): 1, ("apply_status", "diffusionrljobs"): 1})
    assert simulation.verdict("Updated") == ("True", "AsRequested"), "it is no change for the next attempt"
    before = pools.patches()
    await simulation.after(3600)
    assert (pools.patches(), simulation.attempts()) == (before, [RAYJOB])


@pytest.mark.parametrize("pool", PLACES)
async def test_a_roll_reads_and_writes_the_cluster_once_for_each_pod_and_twice_more(
    simulation: Any, pools: Pools, pool: str
) -> None:
    await pools.run_both()
    simulation.cluster.counts()
    await simulation.edit_and_settle(**spec_of(pool, **IMAGE))
    for _ in range(3):
        assert simulation.verdict("Updated") == ("False", "RollingUpdate")
        assert len(pools.replace_named(pool)) == 1
        await simulation.settle()
        assert not pools.replace_named(pool), "the new one does not serve"
        await pools.report()
    assert simulation.condition("Updated").reason == "AsRequested"
    # The template, each pod, and the end, each on what was read before; the beginning and the end are events.
    rayclusters = {("get", "rayclusters"): 3 + 2, ("patch", "rayclusters"): 3 + 2}
    others = {("apply_status", "diffusionrljobs"): 2, ("create", "events"): 2}
    assert simulation.cluster.counts() == Counter(rayclusters | others)
    assert not any(kind == "rayclusters" for _, kind in await simulation.requests_in(7200))
    assert (simulation.attempts(), simulation.status().failures) == ([RAYJOB], ())
