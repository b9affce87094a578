"""The operator creates, changes and deletes only objects that its job controls; labels and names do not decide."""

from __future__ import annotations

from typing import Any

import pytest

from omni_operator.cluster.errors import Unavailable
from omni_operator.cluster.kinds import NETWORK_POLICIES, PODS, RAYCLUSTERS, RAYJOBS, Kind

KEY = ("team-a", "red")
LABELS = {"app.kubernetes.io/managed-by": "omni-operator", "diffusionrl.io/job": "red", "diffusionrl.io/attempt": "1"}


def foreign(kind: Kind, name: str, **metadata: Any) -> dict[str, Any]:
    meta = {"namespace": KEY[0], "name": name, **metadata}
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": meta, "spec": {"theirs": True}}


@pytest.mark.parametrize("labels", [{}, LABELS])
@pytest.mark.parametrize(
    ("kind", "name"),
    [(NETWORK_POLICIES, "red"), (RAYJOBS, "red-a01")],
    ids=["policy", "rayjob"],
)
async def test_an_object_of_another_owner_is_named_and_never_touched(
    simulation: Any, kind: Kind, name: str, labels: dict[str, str]
) -> None:
    before = simulation.cluster.make(foreign(kind, name, labels=labels))
    simulation.submit()
    await simulation.after(3600)
    for condition in ("Admitted", "Ready"):
        assert simulation.condition(condition).reason == "NameTaken"
        assert f"{kind.kind} {name} exists and does not belong to this job" in simulation.condition(condition).message
    assert simulation.event_reasons() == ["NameTaken"]
    assert simulation.cluster.get(kind, KEY[0], name) == before
    requests = simulation.cluster.counts()
    assert requests["create", kind.plural] < 250
    assert simulation.status().attempts == 0
    simulation.cluster.remove(kind, *KEY[:1], name)
    await simulation.after(15)
    assert simulation.attempts() == ["red-a01"]
    assert simulation.condition("Ready").reason == "Starting"


async def test_a_deleted_job_leaves_objects_of_other_owners(simulation: Any) -> None:
    kept = [
        simulation.cluster.make(foreign(kind, name, labels=LABELS))
        for kind, name in ((NETWORK_POLICIES, "red"), (RAYJOBS, "red-a01"), (PODS, "red-x"))
    ]
    simulation.submit()
    await simulation.settle()
    simulation.cluster.remove(*simulation.job_place())
    await simulation.after(120)
    assert simulation.cluster.get(*simulation.job_place()) is None
    assert [simulation.cluster.get(RAYJOBS, KEY[0], "red-a01")] == [kept[1]]
    assert not {request for request in simulation.cluster.counts() if request[0] == "delete"}
    for body, kind in zip(kept, (NETWORK_POLICIES, RAYJOBS, PODS), strict=True):
        assert simulation.cluster.get(kind, KEY[0], body["metadata"]["name"]) == body


async def test_the_name_of_the_controller_is_in_the_message(simulation: Any) -> None:
    owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "u", "controller": True}
    simulation.cluster.make(foreign(NETWORK_POLICIES, "red", ownerReferences=[owner]))
    simulation.cluster.collect = lambda: None  # the Deployment is not simulated
    simulation.submit()
    await simulation.settle()
    assert "NetworkPolicy red exists and belongs to Deployment web" in simulation.condition("Ready").message


async def test_strays_with_the_labels_of_a_job_change_nothing(simulation: Any) -> None:
    strays = [
        simulation.cluster.make(foreign(RAYJOBS, "red-a07", labels={**LABELS, "diffusionrl.io/attempt": "7"})),
        simulation.cluster.make(foreign(RAYCLUSTERS, "red-a07-x", labels={**LABELS, "diffusionrl.io/attempt": "7"})),
        simulation.cluster.make({
            **foreign(PODS, "red-stray", labels=LABELS),
            "status": {"containerStatuses": [
                {"name": "c", "state": {"terminated": {"reason": "OOMKilled", "exitCode": 137}}},
            ]},
        }),
    ]  # fmt: skip
    simulation.submit(backoffLimit=1)
    await simulation.settle()
    simulation.run(1)
    await simulation.settle()
    assert simulation.condition("Ready").status == "True"
    simulation.end(1, "FAILED", "AppFailed", "exit code 1")
    await simulation.after(60)
    status = simulation.status()
    assert [(failure.attempt, failure.reason) for failure in status.failures] == [(1, "ApplicationError")]
    assert simulation.attempts() == ["red-a07", "red-a02"]
    simulation.edit(suspend=True)
    await simulation.after(60)
    assert simulation.condition("Suspended").status == "True"
    for kind, body in zip((RAYJOBS, RAYCLUSTERS, PODS), strays, strict=True):
        assert simulation.cluster.get(kind, KEY[0], body["metadata"]["name"]) == body


async def test_a_rayjob_without_its_labels_is_found_again(simulation: Any) -> None:
    simulation.submit()
    await simulation.settle()
    simulation.run(1)
    await simulation.settle()
    simulation.cluster.change(RAYJOBS, KEY[0], "red-a01", metadata={"labels": dict.fromkeys(LABELS)})
    await simulation.after(120)
    assert (simulation.attempts(), simulation.status().failures) == (["red-a01"], ())
    assert simulation.cluster.get(RAYJOBS, KEY[0], "red-a01")["metadata"]["labels"].items() >= LABELS.items()
    simulation.end(1)
    await simulation.settle()
    assert simulation.status().is_true("Succeeded")


async def test_a_rayjob_whose_creation_was_not_recorded_is_the_attempt_even_without_labels(simulation: Any) -> None:
    simulation.submit()
    lost = [False]

    def lose_the_answer(verb: str, kind: Kind, name: str) -> Unavailable | None:
        return Unavailable("killed") if verb == "apply_status" and not lost[0] else None

    simulation.cluster.failures = lose_the_answer
    simulation.watch()
    with pytest.raises(Unavailable):
        await simulation.reconcile()
    lost[0] = True
    simulation.cluster.change(RAYJOBS, KEY[0], "red-a01", metadata={"labels": dict.fromkeys(LABELS)})
    simulation.start_operator()
    await simulation.after(60)
    assert simulation.attempts() == ["red-a01"]
    assert (simulation.status().attempts, simulation.status().failures) == (1, ())


async def test_a_rayjob_without_its_owner_stays_the_attempt_and_is_not_deleted_with_the_job(simulation: Any) -> None:
    await simulation.submit_running()
    simulation.cluster.change(RAYJOBS, KEY[0], "red-a01", metadata={"ownerReferences": []})
    await simulation.after(3600)
    assert (simulation.attempts(), simulation.status().attempts, simulation.status().failures) == (["red-a01"], 1, ())
    simulation.cluster.remove(*simulation.job_place())
    await simulation.after(60)
    simulation.submit()
    await simulation.settle()
    assert simulation.attempts() == ["red-a01"], "no object without an owner is deleted"
    assert simulation.condition("Ready").reason == "NameTaken"


async def test_a_deleted_rayjob_is_read_once(simulation: Any) -> None:
    simulation.submit()
    await simulation.settle()
    simulation.run(1)
    await simulation.settle()
    simulation.cluster.remove(RAYJOBS, KEY[0], "red-a01")
    simulation.cluster.counts()
    await simulation.after(60)
    assert simulation.attempts() == ["red-a02"]
    assert simulation.cluster.counts()["get", "rayjobs"] == 1


async def test_pauses_grow_while_a_user_deletes_the_rayjob_of_every_attempt(simulation: Any) -> None:
    simulation.submit()
    await simulation.settle()
    pauses = []
    for attempt in range(1, 7):
        simulation.cluster.remove(RAYJOBS, KEY[0], f"red-a{attempt:02d}")
        since = simulation.now
        while not simulation.attempts():
            await simulation.after(1)
        pauses.append(int((simulation.now - since).total_seconds()))
    assert pauses == [5, 10, 20, 40, 80, 80]
    assert simulation.status().failures_counted == 0
    assert [body["metadata"]["name"] for body in simulation.cluster.all(RAYJOBS)] == ["red-a07"]


async def test_drift_of_a_selector_is_corrected_and_labels_of_others_stay(simulation: Any) -> None:
    simulation.submit()
    await simulation.settle()
    simulation.run(1)
    await simulation.settle()
    policy = simulation.cluster.get(NETWORK_POLICIES, *KEY)["spec"]
    wider = [*policy["ingress"], {}]
    simulation.cluster.change(
        NETWORK_POLICIES, *KEY,
        spec={"podSelector": {"matchLabels": {"tier": "x"}}, "ingress": wider, "defaulted": "by the API server"},
        metadata={"labels": {"team": "a"}, "annotations": {"note": "b"}},
    )  # fmt: skip
    await simulation.settle()
    after = simulation.cluster.get(NETWORK_POLICIES, *KEY)
    assert after["spec"] == {**policy, "defaulted": "by the API server"}
    assert (after["metadata"]["labels"]["team"], after["metadata"]["annotations"]["note"]) == ("a", "b")
    simulation.cluster.counts()
    await simulation.after(600)
    assert not simulation.cluster.counts()


@pytest.mark.parametrize("kind", [RAYCLUSTERS, PODS])
async def test_an_object_whose_labels_name_another_job_stays_that_of_its_controllers(
    simulation: Any, kind: Kind
) -> None:
    simulation.submit(suspendPolicy={"mode": "Immediate"})
    await simulation.settle()
    simulation.run(1)
    await simulation.settle()
    name = "red-a01-x1" if kind == RAYCLUSTERS else "red-a01-x1-worker"
    simulation.cluster.change(kind, KEY[0], name, metadata={"labels": {"diffusionrl.io/job": "blue"}})
    await simulation.settle()
    simulation.edit(suspend=True)
    await simulation.after(60)
    assert simulation.condition("Suspended").status == "True", "the deletion of its objects was seen"


async def test_a_raycluster_without_its_labels_is_found_again(simulation: Any) -> None:
    """The next attempt waits for it."""
    simulation.submit(suspendPolicy={"mode": "Immediate"})
    await simulation.settle()
    simulation.run(1)
    await simulation.settle()
    change = {"labels": dict.fromkeys(LABELS), "finalizers": ["ray.io/slow"]}
    simulation.cluster.change(RAYCLUSTERS, KEY[0], "red-a01-x1", metadata=change)
    simulation.edit(suspend=True)
    await simulation.after(60)
    assert simulation.condition("Suspended").status == "Unknown"
    simulation.edit(suspend=False)
    await simulation.after(60)
    assert simulation.attempts() == []
    assert simulation.cluster.get(RAYCLUSTERS, KEY[0], "red-a01-x1")["metadata"]["labels"].items() >= LABELS.items()
    simulation.cluster.change(RAYCLUSTERS, KEY[0], "red-a01-x1", metadata={"finalizers": []})
    await simulation.after(60)
    assert simulation.attempts() == ["red-a02"]
