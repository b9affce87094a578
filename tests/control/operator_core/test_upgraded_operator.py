"""Edits of a job whose attempt another version of the operator, or one with other settings, has rendered."""

from __future__ import annotations

from typing import Any

import pytest

from control.operator_core.pools import CLUSTER, ROLLOUT, Pools
from omni_operator.cluster.kinds import RAYCLUSTERS
from omni_operator.plan import ClusterSettings

KEY = ("team-a", "red")
UPDATED = {"rollout": {**ROLLOUT, "podTemplate": {"spec": {"priorityClassName": "high"}}}}


async def upgrade(simulation: Any, pools: Pools) -> None:
    """A job runs, and an operator follows that renders its attempt otherwise: here, with another default image."""
    await pools.run()
    simulation.start_operator()
    simulation.reconciler.settings = ClusterSettings(image="rollout:2")
    await simulation.settle()
    simulation.report(step=1, **{"rollout/replica_versions": {f"10.0.0.{place}": 1 for place in range(2, 5)}})
    await simulation.settle()
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
    simulation.edit(**changed)
    await simulation.settle()
    assert simulation.condition("Updated").reason == "AsRequested"
    assert pools.groups()[1] == ("rollout", changed.get("rollout", ROLLOUT)["replicas"])
    simulation.edit(trainer={"totalSteps": 20, "accelerator": {"vendor": "NVIDIA", "count": 2}})
    await simulation.settle()
    assert simulation.condition("Updated").reason == "NextAttempt"


async def test_no_pod_is_replaced_by_one_that_is_rendered_otherwise_than_the_trainers(
    simulation: Any, pools: Pools
) -> None:
    """The trainer's pods keep their image, and so do those that work with it."""
    await upgrade(simulation, pools)
    before = pools.patches()
    simulation.edit(**UPDATED)
    await simulation.after(3600)
    assert (simulation.condition("Updated").reason, pools.patches()) == ("NextAttempt", before)
    (head, *_) = simulation.cluster.get(RAYCLUSTERS, KEY[0], CLUSTER)["spec"]["workerGroupSpecs"]
    assert head["template"]["spec"]["containers"][0]["image"] == "rollout:1"
