"""Rollout and reward pods that are replaced one by one while an attempt runs, also after an upgrade of the operator."""

from typing import Any

import pytest

from control.operator_core.pools import CLUSTER, KEY, PLACES, ROLLOUT, Pools, spec_of
from omni_operator.api.names import PAUSE_ANNOTATION, ROLLOUT_GROUP, rolling_names
from omni_operator.cluster.kinds import JOBS, PODS, RAYCLUSTERS
from omni_operator.plan import ClusterSettings

IMAGE = {"podTemplate": {"spec": {"containers": [{"name": "ray", "image": "rollout:2"}]}}}
NEW = {**ROLLOUT, **IMAGE}


def rollout_pods(simulation: Any) -> dict[str, str]:
    """Template by name of each rollout pod."""
    pods = [body["metadata"] for body in simulation.cluster.all(PODS)]
    pods = [meta for meta in pods if meta["labels"].get("ray.io/group") == "rollout"]
    return {meta["name"]: meta["labels"][rolling_names(ROLLOUT_GROUP).template] for meta in pods}


async def roll(simulation: Any, pools: Pools, strategy: dict[str, int] | None = None) -> None:
    """Change the image of the rollout pods of an attempt, all of which serve."""
    await pools.run(backoffLimit=0)
    await pools.report()
    await simulation.edit_and_settle(rollout={**NEW, "updateStrategy": strategy} if strategy else NEW)


def image(pools: Pools, group: int = 1) -> str:
    """The image of a group's template."""
    return str(pools.specs()[group]["template"]["spec"]["containers"][0]["image"])


async def test_a_change_of_the_image_replaces_pods_one_by_one_those_with_the_oldest_weights_first(
    simulation: Any, pools: Pools
) -> None:
    await pools.run(backoffLimit=0)
    old = rollout_pods(simulation)
    await pools.report(5, **{"10.0.0.3": 3})
    await simulation.edit_and_settle(rollout=NEW)
    assert (image(pools), pools.groups()[1]) == ("rollout:2", ("rollout", 3))
    updated = simulation.condition("Updated")
    assert (updated.status, updated.reason) == ("False", "RollingUpdate")
    assert updated.message == "0 of 3 rollout pods have the current spec and serve"
    order = []
    for count in (1, 2, 3):
        order += pools.replace_named()
        await simulation.after(15)
        assert not pools.replace_named(), "the new pod does not serve"
        assert (simulation.status().rollout.updated, len(rollout_pods(simulation))) == (count, 3)
        await pools.report(5, **({"10.0.0.3": 3} if count < 2 else {}))
    assert order == [f"{CLUSTER}-rollout-3", f"{CLUSTER}-rollout-2", f"{CLUSTER}-rollout-4"]
    assert not {*old.values()} & {*rollout_pods(simulation).values()}
    assert simulation.verdict("Updated") == ("True", "AsRequested")
    assert "annotations" not in simulation.cluster.get(RAYCLUSTERS, KEY[0], CLUSTER)["metadata"] or not any(
        name.startswith("diffusionrl.io/rollout-")
        for name in simulation.cluster.get(RAYCLUSTERS, KEY[0], CLUSTER)["metadata"]["annotations"]
    )
    assert len(pools.events("RollingUpdate")) == 1
    assert pools.events("PodsUpdated") == ["all pods have the current spec"]
    assert pools.events("RolloutPodLost") == [], "the operator deletes pods itself"
    assert (simulation.attempts(), simulation.status().failures) == (["red-a01"], ())
    before = pools.patches()
    await simulation.after(7200)
    assert pools.patches() == before


FIELDS: dict[str, Any] = {
    "resources": {"requests": {"cpu": "2"}},
    "sharedMemory": {"sizeLimit": "3Gi"},
    "scheduling": {"nodeSelector": {"zone": "a"}},
    "podTemplate": {"metadata": {"labels": {"a": "b"}}},
}


@pytest.mark.parametrize(
    ("pool", "field", "value"),
    [*((pool, *field) for pool in PLACES for field in FIELDS.items()), ("rollout", "drainSeconds", 5)],
)
async def test_fields_that_only_these_pods_read_replace_them_and_no_others(
    simulation: Any, pools: Pools, pool: str, field: str, value: Any
) -> None:
    number = PLACES[pool]
    await pools.run_both()
    before = pools.specs()
    await simulation.edit_and_settle(**spec_of(pool, **{field: value}))
    assert len(pools.replace_named(pool)) == 1
    assert simulation.condition("Updated").reason == "RollingUpdate"
    after = pools.specs()
    assert [group["template"] != after[index]["template"] for index, group in enumerate(before)].index(True) == number
    await simulation.edit_and_settle(**spec_of(pool, **{field: None}))
    for part in ("template", "resources"):
        assert pools.specs()[number][part] == before[number][part]


@pytest.mark.parametrize(
    "changed",
    [
        {"runtime": {"image": "rollout:2", "rayVersion": "2.55.0"}},
        {"rollout": {**ROLLOUT, "engine": {"maxBatchSize": 8}}},
        {"rollout": {**NEW, "pipeline": {"steps": 20}}},
        {"rollout": {**ROLLOUT, "accelerator": {"vendor": "NVIDIA", "count": 1}}},
        spec_of("reward", **IMAGE, base="org/other"),
    ],
    ids=["image of all pods", "engine", "with others", "accelerators", "another judge"],
)
async def test_what_the_trainer_reads_too_is_for_the_next_attempt_and_replaces_no_pod(
    simulation: Any, pools: Pools, changed: dict[str, Any]
) -> None:
    await pools.run_both()
    before = pools.patches()
    await simulation.edit_and_settle(**changed)
    await simulation.after(7200)
    assert simulation.condition("Updated").reason == "NextAttempt"
    assert (pools.patches(), image(pools)) == (before, "rollout:1")


async def test_a_spec_that_the_cluster_refuses_replaces_no_pod(simulation: Any, pools: Pools) -> None:
    await pools.run()
    await pools.report()
    before = pools.patches()
    privileged = {"spec": {"containers": [{"name": "ray", "securityContext": {"privileged": True}}]}}
    await simulation.edit_and_settle(rollout={**ROLLOUT, "podTemplate": privileged})
    assert simulation.condition("Updated").reason == "InvalidSpec"
    assert pools.patches() == before


@pytest.mark.parametrize("state", ["RollingUpdate", "RollingUpdatePaused", "RolledBack"])
async def test_a_pod_that_is_replaced_is_not_said_to_be_lost_and_another_one_is(
    simulation: Any, pools: Pools, state: str
) -> None:
    await roll(simulation, pools, {"progressDeadlineSeconds": 600})
    if state == "RolledBack":
        pools.replace_named(status={"phase": "Pending"})
        await simulation.after(610)
        await pools.report()
    elif state == "RollingUpdatePaused":
        simulation.cluster.change(JOBS, *KEY, metadata={"annotations": {PAUSE_ANNOTATION: "true"}})
    await simulation.settle()
    assert simulation.condition("Updated").reason == state
    (named,) = pools.leaving()
    # The pod drains, then it is gone, and another one starts.
    finalizers = {"finalizers": ["drains"]}
    simulation.cluster.change(PODS, KEY[0], named, metadata=finalizers)
    simulation.cluster.remove(PODS, KEY[0], named)
    await simulation.after(20)
    simulation.cluster.change(PODS, KEY[0], named, metadata={"finalizers": []})
    await simulation.after(20)
    started = pools.add("rollout", {"phase": "Pending"})
    await simulation.after(20)
    assert pools.events("RolloutPodLost") == []
    lost = next(name for name in rollout_pods(simulation) if name not in (named, started))
    simulation.cluster.change(PODS, KEY[0], lost, status={"conditions": [{"type": "Ready", "status": "False"}]})
    await simulation.after(20)
    assert len(pools.events("RolloutPodLost")) == 1


async def test_an_annotation_pauses_the_replacement(simulation: Any, pools: Pools) -> None:
    await roll(simulation, pools)
    simulation.cluster.change(JOBS, *KEY, metadata={"annotations": {PAUSE_ANNOTATION: "true"}})
    pools.replace_named()
    await pools.report()
    assert not pools.replace_named()
    updated = simulation.condition("Updated")
    assert (updated.status, updated.reason) == ("False", "RollingUpdatePaused")
    assert updated.message.startswith("1 of 3 rollout pods have the current spec and serve") and PAUSE_ANNOTATION in (
        updated.message
    )
    await simulation.after(7200)
    assert simulation.condition("Updated").reason == "RollingUpdatePaused"
    simulation.cluster.change(JOBS, *KEY, metadata={"annotations": {PAUSE_ANNOTATION: "false"}})
    await pools.report()
    assert len(pools.replace_named()) == 1
    assert simulation.condition("Updated").reason == "RollingUpdate"


async def test_new_pods_that_do_not_serve_in_time_are_replaced_by_pods_of_the_spec_before(
    simulation: Any, pools: Pools
) -> None:
    await roll(simulation, pools, {"progressDeadlineSeconds": 600})
    container = {"name": "ray", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "rollout:2 not found"}}}
    pools.replace_named(status={"phase": "Pending", "containerStatuses": [container]})
    await simulation.after(599)
    assert simulation.condition("Updated").reason == "RollingUpdate"
    await simulation.after(1)
    updated = simulation.condition("Updated")
    assert (updated.status, updated.reason) == ("False", "RolledBack")
    assert "did not serve within 600 s" in updated.message and "rollout:2 not found" in updated.message
    assert pools.events("RolledBack") == [updated.message]
    assert image(pools) == "rollout:1"
    assert pools.replace_named() == [f"{CLUSTER}-rollout-5"]
    await pools.report()
    assert len({*rollout_pods(simulation).values()}) == 1
    before = pools.patches()
    simulation.start_operator()
    await pools.report()
    await simulation.after(7200)
    assert (simulation.condition("Updated").message, pools.patches()) == (updated.message, before), "not tried again"
    assert simulation.status().rollout.updated == 0
    await simulation.edit_and_settle(rollout={**NEW, "resources": {"requests": {"cpu": "2"}}})
    assert (simulation.condition("Updated").reason, image(pools)) == ("RollingUpdate", "rollout:2")


@pytest.mark.parametrize("written", ["no JSON", "[1]", "7", "[" * 5000])
async def test_a_template_before_that_is_none_stops_no_pass(simulation: Any, pools: Pools, written: str) -> None:
    """Anyone who may change RayClusters may change their annotations."""
    await roll(simulation, pools, {"progressDeadlineSeconds": 600})
    before = rolling_names(ROLLOUT_GROUP).before
    simulation.change(RAYCLUSTERS, metadata={"annotations": {before: written}})
    pools.replace_named(status={"phase": "Pending"})
    requests = pools.patches()
    await simulation.after(3600)
    conditions = {
        condition["type"]: condition for condition in simulation.cluster.get(JOBS, *KEY)["status"]["conditions"]
    }
    assert "ReconcileError" not in conditions
    assert conditions["Updated"]["reason"] == "RollingUpdate"
    assert image(pools) == "rollout:2", "there is nothing else to make the pods of"
    assert pools.patches() - requests < 5


async def test_rollout_and_reward_pods_are_replaced_at_the_same_time(simulation: Any, pools: Pools) -> None:
    await pools.run_both()
    await simulation.edit_and_settle(**{**spec_of("reward", **IMAGE), "rollout": NEW})
    assert len(pools.leaving(1)) == len(pools.replace_named("reward")) == 1
    message = simulation.condition("Updated").message
    assert "0 of 3 rollout pods" in message and "0 of 3 reward pods" in message


async def upgrade(simulation: Any, pools: Pools) -> None:
    """A job runs, and an operator follows that renders its attempt otherwise: here, with another default image."""
    await pools.run()
    simulation.start_operator()
    simulation.reconciler.settings = ClusterSettings(image="rollout:2")
    await simulation.settle()
    await pools.report()
    assert simulation.condition("Updated").reason == "AsRequested"


@pytest.mark.parametrize(
    "changed",
    [
        {"rollout": {**ROLLOUT, "replicas": 5}},
        {"rollout": {**ROLLOUT, "staleness": {"maxVersions": 4}}},
        {"ttlSecondsAfterFinished": 7},
        {"security": {"networkPolicy": "Disabled"}},
    ],
)
async def test_an_edit_of_a_live_field_is_not_said_to_be_for_the_next_attempt(
    simulation: Any, pools: Pools, changed: dict[str, Any]
) -> None:
    await upgrade(simulation, pools)
    await simulation.edit_and_settle(**changed)
    assert simulation.condition("Updated").reason == "AsRequested"
    assert pools.groups()[1] == ("rollout", changed.get("rollout", ROLLOUT)["replicas"])
    await simulation.edit_and_settle(trainer={"totalSteps": 20, "accelerator": {"vendor": "NVIDIA", "count": 2}})
    assert simulation.condition("Updated").reason == "NextAttempt"


async def test_no_pod_is_replaced_by_one_that_is_rendered_otherwise_than_the_trainers(
    simulation: Any, pools: Pools
) -> None:
    """The trainer's pods keep their image, and so do those that work with it."""
    await upgrade(simulation, pools)
    before = pools.patches()
    simulation.edit(rollout={**ROLLOUT, "podTemplate": {"spec": {"priorityClassName": "high"}}})
    await simulation.after(3600)
    assert (simulation.condition("Updated").reason, pools.patches()) == ("NextAttempt", before)
    assert image(pools, 0) == "rollout:1"
