"""Jobs without a label of a queue, in a namespace whose LocalQueue `default` takes them."""

from __future__ import annotations

from typing import Any

import pytest

from control.operator_core.pools import CLUSTER, KEY, ROLLOUT, Pools
from omni_operator.cluster.kinds import RAYCLUSTERS, RAYJOBS

IMAGE = {"podTemplate": {"spec": {"containers": [{"name": "ray", "image": "rollout:2"}]}}}


async def run(simulation: Any, pools: Pools, **rollout: Any) -> None:
    """A job whose RayJob got a label when it was created, and whose pods are ready and reported."""
    await pools.run(rollout={**ROLLOUT, **rollout})
    label = {"labels": {"kueue.x-k8s.io/queue-name": "default"}}
    simulation.cluster.change(RAYJOBS, KEY[0], "red-a01", metadata=label)
    simulation.report(
        "heartbeat",
        **{"rollout/replica_versions": {f"10.0.0.{number}": 1 for number in (2, 3, 4)}, "rollout/queue": 50},
    )
    await simulation.settle()


@pytest.mark.parametrize("change", [{"replicas": 4}, IMAGE, {**IMAGE, "replicas": 2}])
async def test_the_pods_that_the_queue_admitted_stay(simulation: Any, pools: Pools, change: dict[str, Any]) -> None:
    await run(simulation, pools)
    before = simulation.cluster.get(RAYCLUSTERS, KEY[0], CLUSTER)["spec"]
    assert simulation.condition("Updated").reason == "AsRequested"
    simulation.edit(rollout={**ROLLOUT, **change})
    await simulation.after(60)
    assert simulation.cluster.get(RAYCLUSTERS, KEY[0], CLUSTER)["spec"] == before and pools.patches() == 0
    assert simulation.condition("Updated").reason == "NextAttempt" and simulation.status().rollout.desired == 3
    simulation.edit(rollout={"replicas": 3, "podTemplate": None})
    await simulation.after(60)
    assert simulation.condition("Updated").reason == "AsRequested"
