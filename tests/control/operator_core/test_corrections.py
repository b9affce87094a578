"""Corrections of a job's objects while another program changes them back, or deletes them, again and again."""

import copy
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.operator_core.pools import CLUSTER, KEY, ROLLOUT, Pools
from omni_operator.cluster.errors import Refused
from omni_operator.cluster.field_managers import find_author
from omni_operator.cluster.kinds import JOBS, NETWORK_POLICIES, RAYCLUSTERS, RAYJOBS, Kind
from omni_operator.reconcile.corrections import AT_ONCE, FORGOTTEN, LONGEST_PAUSE, Change, Corrections
from omni_operator.reconcile.pass_memory import PassMemory
from omni_operator.reconcile.step_runner import GROUPS

POLICY = NETWORK_POLICIES, KEY[0], "red"


def put_back(simulation: Any) -> None:
    """Another controller has its own values."""
    simulation.cluster.change(*POLICY, spec={"ingress": []})


def delete(simulation: Any) -> None:
    simulation.cluster.remove(*POLICY)


def restored(simulation: Any) -> bool:
    policy = simulation.cluster.get(*POLICY)
    return bool(policy and policy["spec"]["ingress"])


async def test_corrections_slow_down_while_another_one_undoes_each_of_them(simulation: Any) -> None:
    """By a deletion; changes are below."""
    await simulation.submit_running()
    simulation.cluster.counts()
    for _ in range(600):
        if restored(simulation):
            delete(simulation)
        await simulation.settle()
        await simulation.after(1)
    assert AT_ONCE < simulation.cluster.counts()["create", "networkpolicies"] < 25, "600 without a pause"
    assert simulation.condition("Ready").status == "True"
    await simulation.after(LONGEST_PAUSE.total_seconds() + 1)
    assert restored(simulation), "the last change is corrected too"


async def test_no_attempt_starts_without_its_policy(simulation: Any) -> None:
    await simulation.submit_running()
    has_policy: list[bool] = []

    def look(verb: str, kind: Kind, name: str) -> None:
        if (verb, kind) == ("create", RAYJOBS):
            has_policy.append(restored(simulation))

    simulation.cluster.failures = look
    for _ in range(200):  # until the pauses have their full length
        if restored(simulation):
            delete(simulation)
        await simulation.after(1)
    simulation.cluster.remove(RAYJOBS, KEY[0], "red-a01")
    await simulation.after(10)
    assert (simulation.attempts(), has_policy) == (["red-a02"], [True])


def shrink(simulation: Any) -> None:
    Pools(simulation).change(1, replicas=1)


def is_whole(simulation: Any) -> bool:
    return Pools(simulation).groups()[1] == ("rollout", ROLLOUT["replicas"])


def limit(simulation: Any) -> None:
    Pools(simulation).change(1, maxReplicas=1)


def is_unlimited(simulation: Any) -> bool:
    return bool(Pools(simulation).specs()[1]["maxReplicas"] >= ROLLOUT["replicas"])


def remove_label_of_rayjob(simulation: Any) -> None:
    """A label policy of the cluster removes what it does not know."""
    simulation.change(RAYJOBS, metadata={"labels": {"diffusionrl.io/job": None}})


def remove_label_of_raycluster(simulation: Any) -> None:
    simulation.change(RAYCLUSTERS, metadata={"labels": {"diffusionrl.io/job": None}})


def has_label(simulation: Any) -> bool:
    labelled = [(RAYJOBS, "red-a01"), (RAYCLUSTERS, CLUSTER)]
    labels = [simulation.cluster.get(kind, KEY[0], name)["metadata"]["labels"] for kind, name in labelled]
    return all("diffusionrl.io/job" in of_object for of_object in labels)


@pytest.mark.parametrize(
    ("undo", "good", "what"),
    [
        (shrink, is_whole, f"the number of pods of worker group rollout of RayCluster {CLUSTER}"),
        (limit, is_unlimited, f"minReplicas or maxReplicas of worker group rollout of RayCluster {CLUSTER}"),
        (put_back, restored, "NetworkPolicy red"),
        (remove_label_of_rayjob, has_label, "the labels of RayJob red-a01"),
        (remove_label_of_raycluster, has_label, f"the labels of RayCluster {CLUSTER}"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
async def test_who_changes_objects_back_all_the_time_is_named_and_answered_less_often(
    simulation: Any, pools: Pools, undo: Any, good: Any, what: str
) -> None:
    await pools.run()
    simulation.cluster.counts()
    undone = 0
    for _ in range(300):
        if good(simulation):
            undo(simulation)
            undone += 1
        await simulation.settle()
        await simulation.after(1)
    assert AT_ONCE < undone < 20, "300 without a pause"
    counts = simulation.cluster.counts()
    assert counts["apply_status", "diffusionrljobs"] <= 2 * undone, "one for each change, and one for its correction"
    assert simulation.verdict("Updated") == ("False", "ChangedByOthers")
    assert f"changes {what} again" in simulation.condition("Updated").message
    assert (simulation.attempts(), simulation.status().failures) == (["red-a01"], ())
    assert len(pools.events("ChangedByOthers")) == 1
    await simulation.after(FORGOTTEN.total_seconds() + 60)
    assert good(simulation)
    assert simulation.verdict("Updated") == ("True", "AsRequested")
    assert not await simulation.requests_in(3600)


async def test_a_second_operator_with_other_settings_is_named_and_answered_less_often(simulation: Any) -> None:
    """It refuses the spec, because it has no image, and each of both would write its status again at once."""
    await simulation.submit_running()
    refused = copy.deepcopy(simulation.cluster.get(JOBS, *KEY)["status"])
    for condition in refused["conditions"]:
        if condition["type"] == "Updated":
            condition.update(status="False", reason="InvalidSpec", message="no image")
    simulation.cluster.counts()
    written = 0
    for _ in range(300):
        if simulation.condition("Updated").reason != "InvalidSpec":
            simulation.cluster.change(JOBS, *KEY, status=refused)
            written += 1
        await simulation.settle()
        await simulation.after(1)
    assert AT_ONCE < written < 20, "300 without a pause"
    assert simulation.cluster.counts()["apply_status", "diffusionrljobs"] <= written + 1
    await simulation.after(LONGEST_PAUSE.total_seconds() + 1)
    assert simulation.verdict("Updated") == ("False", "ChangedByOthers")
    message = simulation.condition("Updated").message
    assert "another program changes the status again" in message and "a second release" in message
    await simulation.after(FORGOTTEN.total_seconds() + 60)
    assert simulation.verdict("Updated") == ("True", "AsRequested")


@pytest.mark.parametrize(
    ("index", "changed", "patches"),
    [
        (1, {"replicas": -3}, 1),  # the definition of KubeRay allows it
        (1, {"maxReplicas": 1}, 1),
        (1, {"minReplicas": 5}, 1),
        (1, {"minReplicas": 9, "maxReplicas": 2}, 1),
        (0, {"minReplicas": 2, "maxReplicas": 2}, 1),
        (0, {"minReplicas": 0, "maxReplicas": 0}, 1),
        (1, {"minReplicas": 0, "maxReplicas": 9}, 0),
        (1, {"minReplicas": 3, "maxReplicas": 3}, 0),
    ],
)
async def test_limits_of_a_group_are_put_right_where_they_do_not_allow_its_number_of_pods(
    simulation: Any, pools: Pools, index: int, changed: dict[str, int], patches: int
) -> None:
    await pools.run()
    before = pools.specs()
    pools.change(index, **changed)
    groups = pools.specs()
    assert await simulation.requests_in(60) == ({("patch", "rayclusters"): 1} if patches else {})
    assert pools.specs() == (before if patches else groups)


async def test_pods_that_other_limits_have_added_leave_and_no_others(simulation: Any, pools: Pools) -> None:
    await pools.run()
    pools.change(1, minReplicas=5)
    added = [pools.add("rollout") for _ in range(2)]
    await simulation.settle()
    assert pools.leaving() == sorted(added)


async def test_limits_that_do_not_allow_a_new_number_change_with_it(simulation: Any, pools: Pools) -> None:
    await pools.run()
    pools.change(1, maxReplicas=3)
    await simulation.settle()
    before = pools.patches()
    await simulation.edit_and_settle(rollout={**ROLLOUT, "replicas": 6})
    assert (pools.groups()[1], pools.patches() - before) == (("rollout", 6), 1)
    assert is_unlimited(simulation)


async def test_the_field_manager_that_changes_an_object_back_is_named(simulation: Any, pools: Pools) -> None:
    await pools.run()
    for _ in range(60):
        if is_whole(simulation):
            shrink(simulation)
        await simulation.after(1)
    assert simulation.condition("Updated").message.startswith("field manager 'helm' changes")
    await simulation.edit_and_settle(rollout={**ROLLOUT, "replicas": 4})
    assert pools.groups()[1] == ("rollout", 4), "a changed spec ends the pause"
    assert simulation.condition("Updated").reason == "AsRequested"


def test_of_changes_in_the_same_second_that_of_the_field_counts() -> None:
    def entry(manager: str, field: str, at: int = 0) -> dict[str, Any]:
        fields = {"f:spec": {field: {}}}
        return {"manager": manager, "time": f"2026-01-01T00:00:0{at}Z", "fieldsV1": fields}

    entries = [entry("kuberay", "f:headGroupSpec"), entry("helm", "f:workerGroupSpecs")]
    assert find_author({"metadata": {"managedFields": entries}}, *GROUPS) == "helm"
    entries = [entry("kuberay", "f:headGroupSpec"), entry("helm", "f:suspend", 1)]
    assert find_author({"metadata": {"managedFields": entries}}, *GROUPS) == "helm", "the last one, if none has it"
    assert find_author({"metadata": {"managedFields": [{"manager": "helm", "fieldsV1": []}]}}, *GROUPS) == "helm"


async def test_a_template_that_is_set_back_all_the_time_is_applied_less_often(simulation: Any, pools: Pools) -> None:
    await pools.run()
    old = pools.specs()[1]["template"]
    simulation.edit(rollout={**ROLLOUT, "podTemplate": {"spec": {"priorityClassName": "high"}}})
    undone = 0
    for _ in range(300):
        await pools.report()
        if pools.specs()[1]["template"] != old:
            pools.change(1, template=old)
            undone += 1
        await simulation.after(1)
    assert AT_ONCE < undone < 20, "300 without a pause"
    assert simulation.verdict("Updated") == ("False", "ChangedByOthers")
    message = simulation.condition("Updated").message
    assert message.startswith("field manager 'helm' changes the pods of worker group rollout of RayCluster")


async def test_numbers_that_autoscaling_asks_for_in_turn_are_no_corrections(simulation: Any, pools: Pools) -> None:
    limits = {"minReplicas": 1, "maxReplicas": 9, "samplesPerReplica": 10, "stabilizationSeconds": 1}
    await pools.run(rollout={"placement": "Separate", "autoscaling": limits})
    for turn in range(4 * AT_ONCE):
        wanted = 30 if turn % 2 else 70
        for _ in range(3):
            simulation.report(step=turn, **{"rollout/queued_samples": wanted})
            await simulation.after(1)
        assert pools.groups()[1] == ("rollout", wanted // 10)
    assert simulation.condition("Updated").reason == "AsRequested"


@given(st.lists(st.floats(min_value=0, max_value=2000), max_size=40))
def test_a_pause_is_never_longer_than_its_limit_and_ends(gaps: list[float]) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    corrections = Corrections()
    change = Change(("labels",))
    for gap in gaps:
        now += timedelta(seconds=gap)
        corrections.record(change, now, "another user changes it")
        end = corrections.pause_end(change, now)
        assert end is None or now < end <= now + LONGEST_PAUSE
        assert end is None or corrections.pause_end(change, end) is None


def test_a_changed_spec_ends_the_pauses_of_its_job() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    memory = PassMemory()
    change = Change(("labels",))
    job = memory.of(KEY, "u", 1)
    for _ in range(AT_ONCE):
        job.corrections.record(change, now, "another user changes it")
    job.refused.begin_pause(Refused("no"), now)
    assert memory.of(KEY, "u", 1).corrections.pause_end(change, now) and job.refused.standing(now)
    assert memory.of(KEY, "u", 2).corrections.pause_end(change, now) is None and not job.refused.standing(now)
