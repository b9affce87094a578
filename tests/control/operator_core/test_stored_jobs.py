"""Jobs that an earlier version of the operator accepted, and that break a rule of this one."""

from __future__ import annotations

from typing import Any

import pytest

from omni_operator.cluster.kinds import JOBS, NETWORK_POLICIES, RAYCLUSTERS
from omni_operator.plan import ClusterSettings
from omni_operator.plan.pod_policy import PodPolicy
from omni_operator.reconcile.spec_cache import InvalidSpec, SpecCache

KEY = ("team-a", "red")
# The rule that cps adds no noise in the last step; a rule of one field; a field that is not there any more.
BROKEN: dict[str, dict[str, Any]] = {
    "rule": {
        "rollout": {
            "replicas": 2,
            "pipeline": {"steps": 10},
            "sampler": {"type": "cps", "noiseLevel": 0.8, "window": {"start": 5, "end": 10, "size": 2}},
        }
    },
    "field": {"seed": -1},
    "gone": {"formerField": {"a": [1]}},
}


BRIGHTNESS = {"name": "brightness"}


@pytest.fixture(params=BROKEN)
async def running(simulation: Any, request: pytest.FixtureRequest) -> Any:
    """A job that runs, whose stored spec breaks a rule since the operator was upgraded."""
    await simulation.submit_running(ttlSecondsAfterFinished=60, backoffLimit=1)
    simulation.edit(**BROKEN[request.param])
    simulation.start_operator()
    await simulation.settle()
    updated = simulation.condition("Updated")
    assert (updated.status, updated.reason) == ("False", "InvalidSpec")
    return simulation


def vendor(simulation: Any) -> Any:
    found = simulation.condition("AcceleratorChosen")
    return found.status, found.reason


async def test_its_success_is_recorded_and_it_is_deleted_at_its_ttl(running: Any) -> None:
    before = vendor(running)
    running.end(1)
    await running.settle()
    assert running.status().is_true("Succeeded")
    assert vendor(running) == before
    running.start_operator()
    await running.after(61)
    assert running.cluster.get(JOBS, *KEY) is None


async def test_it_can_be_suspended_and_starts_again_when_the_spec_is_corrected(running: Any) -> None:
    running.edit(suspend=True)
    await running.after(600)
    assert (running.condition("Suspended").status, running.attempts()) == ("True", [])
    running.edit(suspend=False)
    await running.after(600)
    assert (running.condition("Ready").reason, running.attempts()) == ("InvalidSpec", [])
    running.edit(seed=0, formerField=None, rollout={"replicas": 2, "sampler": None, "pipeline": None})
    await running.settle()
    assert running.attempts() == ["red-a02"]


async def test_a_job_that_a_stricter_policy_refuses_is_suspended_and_says_why_it_does_not_resume(
    simulation: Any,
) -> None:
    await simulation.submit_running()
    simulation.reconciler.settings = ClusterSettings(
        image="rollout:1", pod_policy=PodPolicy.model_validate({"serviceAccounts": ["ours"]})
    )
    simulation.edit(suspend=True)
    await simulation.after(600)
    assert (simulation.condition("Suspended").status, simulation.attempts()) == ("True", [])
    simulation.edit(suspend=False)
    await simulation.settle()
    assert (simulation.condition("Ready").reason, simulation.attempts()) == ("InvalidSpec", [])


async def test_a_job_is_not_called_invalid_any_more_when_the_policy_allows_it_again(simulation: Any) -> None:
    await simulation.submit_running()
    strict = PodPolicy.model_validate({"serviceAccounts": ["ours"]})
    for policy, reason in ((strict, "InvalidSpec"), (PodPolicy(), "AsRequested")):
        simulation.start_operator()
        simulation.reconciler.settings = ClusterSettings(image="rollout:1", pod_policy=policy)
        await simulation.settle()
        assert simulation.condition("Updated").reason == reason
    assert simulation.attempts() == ["red-a01"]


async def test_a_failure_is_recorded_and_no_other_attempt_starts(running: Any) -> None:
    running.lose_head(1)
    await running.after(600)
    assert [failure.reason for failure in running.status().failures] == ["HeadLost"]
    assert (running.condition("Ready").reason, running.attempts()) == ("InvalidSpec", [])
    assert running.cluster.get(RAYCLUSTERS, KEY[0], "red-a01-x1") is None


async def test_its_pods_and_policy_stay_as_they_are(running: Any) -> None:
    """Its valid fields may say less than the pods have; they are no reason to change these."""
    before = [
        running.cluster.get(kind, KEY[0], name)
        for kind, name in ((NETWORK_POLICIES, "red"), (RAYCLUSTERS, "red-a01-x1"))
    ]
    running.cluster.counts()
    await running.after(3600)
    assert [
        running.cluster.get(kind, KEY[0], name)
        for kind, name in ((NETWORK_POLICIES, "red"), (RAYCLUSTERS, "red-a01-x1"))
    ] == before
    assert running.attempts() == ["red-a01"]
    assert not {
        request for request in running.cluster.counts() if request[1] != "diffusionrljobs" and request[1] != "events"
    }


@pytest.mark.parametrize(
    ("changes", "left"),
    [
        ({"suspend": True, "seed": -1}, True),
        ({"suspend": True, "seed": -1, "backoffLimit": "x", "podTemplate": 7}, True),
        ({"suspend": True, "reward": {"scorers": [{"name": "color"}, {"name": 1}, {"nome": "x"}, BRIGHTNESS]}}, True),
        ({"suspend": True, "data": {"train": [*["p.jsonl"] * 9, 1, 2]}}, True),
        ({"suspend": True, "data": {"train": [1, *["p.jsonl"] * 8, 2, 3, 4]}}, True),
        ({"suspend": True, "model": 7}, False),
        ({"suspend": True, "data": {}}, False),
    ],
)
def test_valid_fields_count_as_far_as_the_job_can_be_read_without_the_others(
    changes: dict[str, Any], left: bool
) -> None:
    spec = {"model": {"base": "shapes-sd3"}, "data": {"train": ["p.jsonl"]}, "trainer": {"totalSteps": 10}}
    spec |= {"reward": {"scorers": [{"name": "color"}]}, **changes}
    meta = {"namespace": KEY[0], "name": KEY[1], "uid": "u", "generation": 1}
    body = {"apiVersion": JOBS.api_version, "kind": JOBS.kind, "metadata": meta, "spec": spec}
    found = SpecCache().get(KEY, body, ClusterSettings(image="rollout:1"))
    assert isinstance(found, InvalidSpec)
    assert (found.job is not None and found.job.spec.suspend) == left
    if found.job is not None:
        valid = [each for each in spec["data"]["train"] if isinstance(each, str)]
        assert [str(each) for each in found.job.spec.data.train] == valid, "no more is left out than what is invalid"
