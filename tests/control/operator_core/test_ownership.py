"""The operator creates, changes and deletes only objects that its job controls; labels and names do not decide."""

from typing import Any

import pytest

from control.operator_core.pools import KEY
from omni_operator.cluster.errors import Unavailable
from omni_operator.cluster.kinds import JOBS, NETWORK_POLICIES, PODS, RAYCLUSTERS, RAYJOBS, Kind

LABELS = {"app.kubernetes.io/managed-by": "omni-operator", "diffusionrl.io/job": "red", "diffusionrl.io/attempt": "1"}


def foreign(kind: Kind, name: str, **metadata: Any) -> dict[str, Any]:
    meta = {"namespace": KEY[0], "name": name, **metadata}
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": meta, "spec": {"theirs": True}}


@pytest.mark.parametrize("labels", [{}, LABELS])
@pytest.mark.parametrize(("kind", "name"), [(NETWORK_POLICIES, "red"), (RAYJOBS, "red-a01")], ids=["policy", "rayjob"])
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
    await simulation.submit_and_settle()
    simulation.cluster.remove(JOBS, *KEY)
    await simulation.after(120)
    assert simulation.cluster.get(JOBS, *KEY) is None
    assert not {request for request in simulation.cluster.counts() if request[0] == "delete"}
    for body, kind in zip(kept, (NETWORK_POLICIES, RAYJOBS, PODS), strict=True):
        assert simulation.cluster.get(kind, KEY[0], body["metadata"]["name"]) == body


async def test_strays_with_the_labels_of_a_job_change_nothing(simulation: Any) -> None:
    killed = {"name": "c", "state": {"terminated": {"reason": "OOMKilled", "exitCode": 137}}}
    seventh = {**LABELS, "diffusionrl.io/attempt": "7"}
    pod = {**foreign(PODS, "red-stray", labels=LABELS), "status": {"containerStatuses": [killed]}}
    attempt = ((RAYJOBS, "red-a07"), (RAYCLUSTERS, "red-a07-x"))
    strays = [simulation.cluster.make(foreign(kind, name, labels=seventh)) for kind, name in attempt]
    strays.append(simulation.cluster.make(pod))
    await simulation.submit_running(backoffLimit=1)
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


async def test_a_rayjob_whose_creation_was_not_recorded_is_the_attempt_even_without_labels(simulation: Any) -> None:
    simulation.submit()
    simulation.refuse(Unavailable("killed"), JOBS, "apply_status")
    simulation.watch()
    with pytest.raises(Unavailable):
        await simulation.reconcile()
    simulation.allow()
    simulation.change(RAYJOBS, metadata={"labels": dict.fromkeys(LABELS)})
    simulation.start_operator()
    await simulation.after(60)
    assert simulation.attempts() == ["red-a01"]
    assert (simulation.status().attempts, simulation.status().failures) == (1, ())


OTHER = {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "y"}


@pytest.mark.parametrize("owners", [[], [OTHER], [{**OTHER, "controller": True}]])
async def test_a_rayjob_without_its_owner_stays_the_attempt_and_gets_it_back(simulation: Any, owners: Any) -> None:
    await simulation.submit_running()
    job = simulation.cluster.get(JOBS, *KEY)["metadata"]["uid"]
    # the ConfigMap is not simulated
    collect = simulation.cluster.collect
    simulation.cluster.collect = lambda: None
    simulation.change(RAYJOBS, metadata={"ownerReferences": owners})
    await simulation.after(60)
    assert (simulation.attempts(), simulation.status().attempts, simulation.status().failures) == (["red-a01"], 1, ())
    owner = simulation.cluster.get(RAYJOBS, KEY[0], "red-a01")["metadata"]["ownerReferences"]
    assert [(reference["uid"], reference.get("controller")) for reference in owner[-1:]] == [(job, True)]
    assert owner[:-1] == [reference for reference in owners if "controller" not in reference], "others stay"
    assert simulation.condition("Updated").reason == "AsRequested"
    simulation.cluster.collect = collect
    simulation.cluster.remove(JOBS, *KEY)
    await simulation.after(60)
    assert not simulation.attempts()


@pytest.mark.parametrize("part", ["labels", "ownerReferences"])
@pytest.mark.parametrize("kind", [RAYJOBS, NETWORK_POLICIES], ids=lambda kind: kind.plural)
async def test_a_job_whose_objects_are_stored_without_label_or_owner_waits_and_leaves_nothing(
    simulation: Any, part: str, kind: Kind
) -> None:
    simulation.alter(lambda body: body["metadata"].pop(part, None), kind)
    simulation.submit()
    simulation.submit(("team-b", "blue"))
    await simulation.after(3600)
    ready = simulation.condition("Ready")
    assert (ready.status, ready.reason) == ("False", "ChildRefused")
    lost = part if part == "ownerReferences" else "label diffusionrl.io/job"
    assert f"was stored without its {lost}" in ready.message
    assert not simulation.cluster.all(kind)
    assert simulation.passes < 100
    del simulation.cluster._store
    await simulation.after(300)
    assert simulation.attempts() == ["red-a01", "blue-a01"]


async def test_an_object_without_owner_that_an_interrupted_pass_has_left_is_deleted(simulation: Any) -> None:
    simulation.alter(lambda body: body["metadata"].pop("ownerReferences", None))
    unanswered = [Unavailable("killed")]
    simulation.cluster.failures = lambda verb, kind, name: unanswered.pop() if verb == "delete" and unanswered else None
    simulation.submit_and_watch()
    with pytest.raises(Unavailable):
        await simulation.reconcile()
    assert simulation.attempts() == ["red-a01"]
    del simulation.cluster._store
    simulation.start_operator()
    await simulation.after(60)
    assert simulation.attempts() == ["red-a01"]
    assert simulation.cluster.get(RAYJOBS, KEY[0], "red-a01")["metadata"]["ownerReferences"]
    assert simulation.condition("Ready").reason == "Starting"


async def test_an_owner_that_a_webhook_removes_again_is_named_and_the_job_goes_on(simulation: Any) -> None:
    await simulation.submit_running()
    simulation.alter(lambda body: body["metadata"].pop("ownerReferences", None))
    simulation.change(RAYJOBS, status={"message": "x"})
    await simulation.after(60)
    updated = simulation.condition("Updated")
    assert (updated.status, updated.reason) == ("False", "ChangedByOthers")
    assert "RayJob red-a01 would stay when the job is deleted" in updated.message
    assert (await simulation.requests_in(3600))["patch", "rayjobs"] < 80
    await simulation.end_and_settle(1)
    assert simulation.status().is_true("Succeeded")


@pytest.mark.parametrize(
    "change",
    [
        {"spec": {"entrypoint": "sleep 1"}},
        {"metadata": {"annotations": {"diffusionrl.io/rendered": "x"}}},
        {"metadata": {"annotations": {"diffusionrl.io/pods": "{}"}}},
        {"metadata": {"annotations": {"diffusionrl.io/spec": None}}},
        {"metadata": {"annotations": {"diffusionrl.io/rendered": None, "diffusionrl.io/checksum": None}}},
        {"metadata": {"annotations": {"diffusionrl.io/checksum": "x"}}},
    ],
    ids=str,
)
async def test_a_rayjob_that_was_edited_is_named_with_who_did_it(simulation: Any, change: Any) -> None:
    await simulation.submit_running()
    edited = {"f:spec": {"f:entrypoint": {}}, "f:metadata": {"f:annotations": {"f:diffusionrl.io/rendered": {}}}}
    fields = [
        {"manager": manager, "operation": "Update", "time": f"2026-0{month}-01T00:00:00Z", "fieldsV1": changed}
        for manager, month, changed in (("kuberay", 2, {"f:spec": {}}), ("kubectl-edit", 1, edited))
    ]
    metadata = {**change.get("metadata", {}), "managedFields": fields}
    simulation.change(RAYJOBS, **{**change, "metadata": metadata})
    await simulation.settle()
    assert simulation.verdict("Updated") == ("False", "ChangedByOthers")
    editor = "field manager 'kubectl-edit' changed the entrypoint or annotations of RayJob red"
    assert simulation.condition("Updated").message.startswith(editor)
    assert simulation.event_reasons().count("ChangedByOthers") == 1
    assert (simulation.attempts(), simulation.status().failures) == (["red-a01"], ())
    simulation.cluster.remove(RAYJOBS, KEY[0], "red-a01")
    await simulation.after(60)
    assert simulation.attempts() == ["red-a02"]
    await simulation.run_and_settle(2)
    assert simulation.condition("Updated").reason == "AsRequested"


async def test_a_suspended_job_waits_for_its_own_pods_only(simulation: Any) -> None:
    await simulation.submit_running()
    simulation.cluster.collect = lambda: None
    owner = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": "red-a01-x1", "uid": "made-up"}
    simulation.cluster.make(foreign(PODS, "theirs", labels=LABELS, ownerReferences=[{**owner, "controller": True}]))
    simulation.edit(suspend=True)
    await simulation.after(60)
    assert simulation.condition("Suspended").status == "Unknown", "pods of the RayCluster are left"
    for kind, name in ((RAYCLUSTERS, "red-a01-x1"), (PODS, "red-a01-x1-head"), (PODS, "red-a01-x1-worker")):
        simulation.cluster.remove(kind, KEY[0], name)
    await simulation.settle()
    assert simulation.condition("Suspended").status == "True"


async def test_pauses_grow_while_a_user_deletes_the_rayjob_of_every_attempt(simulation: Any) -> None:
    await simulation.submit_running()
    pauses = []
    for attempt in range(1, 7):
        simulation.cluster.remove(RAYJOBS, KEY[0], f"red-a{attempt:02d}")
        since = simulation.now
        while not simulation.attempts():
            await simulation.after(1)
        pauses.append(int((simulation.now - since).total_seconds()))
    assert pauses == [5, 10, 20, 40, 80, 80]
    assert {failure.reason for failure in simulation.status().failures} == {"ChildDeleted"}
    assert simulation.status().failures_counted == 0
    assert simulation.attempts() == ["red-a07"]
    assert simulation.cluster.counts()["get", "rayjobs"] == 6, "each one that is gone is looked for once"


async def test_drift_of_a_selector_is_corrected_and_labels_of_others_stay(simulation: Any) -> None:
    await simulation.submit_running()
    policy = simulation.cluster.get(NETWORK_POLICIES, *KEY)["spec"]
    wider = [*policy["ingress"], {}]
    simulation.cluster.change(
        NETWORK_POLICIES,
        *KEY,
        spec={"podSelector": {"matchLabels": {"tier": "x"}}, "ingress": wider, "defaulted": "by the API server"},
        metadata={"labels": {"team": "a"}, "annotations": {"note": "b"}},
    )
    await simulation.settle()
    after = simulation.cluster.get(NETWORK_POLICIES, *KEY)
    assert after["spec"] == {**policy, "defaulted": "by the API server"}
    assert (after["metadata"]["labels"]["team"], after["metadata"]["annotations"]["note"]) == ("a", "b")
    assert not await simulation.requests_in(600)


@pytest.mark.parametrize("kind", [RAYCLUSTERS, PODS])
async def test_an_object_whose_labels_name_another_job_stays_that_of_its_controllers(
    simulation: Any, kind: Kind
) -> None:
    await simulation.submit_running(suspendPolicy={"mode": "Immediate"})
    name = "red-a01-x1" if kind == RAYCLUSTERS else "red-a01-x1-worker"
    simulation.cluster.change(kind, KEY[0], name, metadata={"labels": {"diffusionrl.io/job": "blue"}})
    await simulation.settle()
    simulation.edit(suspend=True)
    await simulation.after(60)
    assert simulation.condition("Suspended").status == "True", "the deletion of its objects was seen"


async def test_a_raycluster_without_its_labels_is_found_again(simulation: Any) -> None:
    """The next attempt waits for it."""
    await simulation.submit_running(suspendPolicy={"mode": "Immediate"})
    change = {"labels": dict.fromkeys(LABELS), "finalizers": ["ray.io/slow"]}
    simulation.change(RAYCLUSTERS, metadata=change)
    simulation.edit(suspend=True)
    await simulation.after(60)
    assert simulation.condition("Suspended").status == "Unknown"
    simulation.edit(suspend=False)
    await simulation.after(60)
    assert simulation.attempts() == []
    assert simulation.cluster.get(RAYCLUSTERS, KEY[0], "red-a01-x1")["metadata"]["labels"].items() >= LABELS.items()
    simulation.change(RAYCLUSTERS, metadata={"finalizers": []})
    await simulation.after(60)
    assert simulation.attempts() == ["red-a02"]
