"""Cache of observed objects: newer versions win, recreated objects differ, missed deletions are found."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from omni_operator.cluster.cache.object_cache import ObjectCache
from omni_operator.cluster.kinds import (
    JOBS,
    NETWORK_POLICIES,
    POD_MONITORS,
    PODS,
    RAYCLUSTERS,
    RAYJOBS,
    Kind,
    UnknownKind,
    kind_of,
)
from omni_operator.cluster.watch.watch_liveness import MAX_EARLY, WatchLiveness

KEY = ("ns", "red")
EARLY = "2026-01-01T00:00:00Z"
LATE = "2026-01-02T00:00:00Z"


def job(uid: str = "j1", version: int = 1, created: str = EARLY, **status: Any) -> dict[str, Any]:
    meta = {"namespace": "ns", "name": "red", "uid": uid, "resourceVersion": str(version), "creationTimestamp": created}
    return {"apiVersion": JOBS.api_version, "kind": JOBS.kind, "metadata": meta, "spec": {}, "status": status}


@pytest.fixture
def cache() -> ObjectCache:
    """A cache with the job."""
    cache = ObjectCache()
    cache.put(JOBS, job())
    return cache


PARENTS = {RAYJOBS: (JOBS, "red", "j1"), RAYCLUSTERS: (RAYJOBS, "red-a01", ""), PODS: (RAYCLUSTERS, "red-a01-x", "")}


def child(kind: Kind, name: str, version: int = 2, uid: str = "", owner: str = "", **status: Any) -> dict[str, Any]:
    """A child of attempt 1 of job j1, or of another owner."""
    labels = {"diffusionrl.io/job": "red", "diffusionrl.io/attempt": "1"}
    meta = {
        "namespace": "ns",
        "name": name,
        "uid": uid or f"uid-{name}",
        "resourceVersion": str(version),
        "creationTimestamp": EARLY,
        "labels": labels,
        "managedFields": [{"manager": "x" * 5000}],
    }
    if kind in PARENTS:
        parent, named, of = PARENTS[kind]
        reference = {"kind": parent.kind, "name": named, "uid": owner or of or f"uid-{named}", "controller": True}
        meta["ownerReferences"] = [reference]
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": meta, "spec": {"a": 1}, "status": status}


def test_an_older_event_does_not_overwrite_an_answer(cache: ObjectCache) -> None:
    assert cache.put(RAYJOBS, child(RAYJOBS, "red-a01", 7, jobDeploymentStatus="Running")) == KEY
    assert cache.put(RAYJOBS, child(RAYJOBS, "red-a01", 5, jobDeploymentStatus="Initializing")) is None
    assert cache.observed(KEY, "j1").rayjobs[0].deployment == "Running"


def test_an_event_without_changes_wakes_no_job() -> None:
    cache = ObjectCache()
    cache.put(RAYJOBS, child(RAYJOBS, "red-a01", 2))
    assert cache.put(RAYJOBS, child(RAYJOBS, "red-a01", 3)) is None
    assert cache.put(RAYJOBS, child(RAYJOBS, "red-a01", 4, jobStatus="RUNNING")) == KEY


def test_the_deletion_event_of_an_older_object_of_that_name_is_ignored(cache: ObjectCache) -> None:
    cache.put(RAYJOBS, child(RAYJOBS, "red-a01", 9, uid="new"))
    assert cache.remove(RAYJOBS, child(RAYJOBS, "red-a01", 8, uid="old")) is None
    assert cache.observed(KEY, "j1").rayjobs
    cache.put(JOBS, job("j2", 9))
    assert cache.remove(JOBS, job("j1", 8)) is None
    assert cache.job(KEY) is not None


def test_a_late_change_of_an_older_object_of_that_name_is_ignored() -> None:
    """The answer to a read has a job that was created again; the watch still delivers changes of the deleted one."""
    cache = ObjectCache()
    cache.put(JOBS, job("j1", 1))
    cache.put(JOBS, job("j2", 9))
    assert cache.put(JOBS, job("j1", 8, state="Running")) is None
    cached = cache.job(KEY)
    assert cached["metadata"]["uid"] == "j2"
    cache.put(RAYJOBS, child(RAYJOBS, "red-a01", 12, uid="new", owner="j2"))
    assert cache.put(RAYJOBS, child(RAYJOBS, "red-a01", 11, uid="old", owner="j1")) is None
    assert [seen.uid for seen in cache.observed(KEY, "j2").rayjobs] == ["new"]


def test_children_of_a_deleted_job_of_that_name_are_leftovers() -> None:
    cache = ObjectCache()
    for kind, name in ((RAYJOBS, "red-a01"), (RAYCLUSTERS, "red-a01-x"), (PODS, "red-a01-x-head")):
        cache.put(kind, child(kind, name))
    cache.put(JOBS, job("j2", 5, LATE))
    # The job waits for the RayJob, then for what garbage collection leaves of it.
    for deleted in (None, (RAYJOBS, "red-a01"), (RAYCLUSTERS, "red-a01-x")):
        if deleted:
            cache.remove(deleted[0], child(*deleted))
        seen = cache.observed(KEY, "j2")
        assert (seen.rayjobs, seen.clusters, seen.leftovers, seen.newest, seen.empty) == ((), (), 1, 0, False)
    cache.remove(PODS, child(PODS, "red-a01-x-head"))
    assert cache.observed(KEY, "j2").empty


def test_objects_with_the_labels_of_a_job_and_other_controllers_are_not_its_objects(cache: ObjectCache) -> None:
    killed = {"containerStatuses": [{"name": "c", "state": {"terminated": {"reason": "OOMKilled", "exitCode": 137}}}]}
    strays = [child(RAYJOBS, "red-a07"), child(RAYCLUSTERS, "stray"), child(PODS, "stray", **killed)]
    for kind, stray in zip((RAYJOBS, RAYCLUSTERS, PODS), strays, strict=True):
        del stray["metadata"]["ownerReferences"]
        cache.put(kind, stray)
    # A RayJob of the job's under a name that no attempt has, and the pod of another job's cluster.
    cache.put(RAYJOBS, child(RAYJOBS, "copy"))
    foreign = child(PODS, "of-blue", **killed)
    foreign["metadata"]["ownerReferences"][0] |= {"name": "blue-a01-x", "uid": "blue"}
    cache.put(PODS, foreign)
    seen = cache.observed(KEY, "j1")
    assert (seen.newest, seen.empty, seen.evidence, seen.pods) == (0, True, (), ())


def test_owners_count_in_any_version_of_their_api(cache: ObjectCache) -> None:
    """KubeRay before 1.0 wrote v1alpha1 into owner references, which an upgrade leaves as they are."""
    for kind, name, version in (
        (RAYJOBS, "red-a01", "diffusionrl.io/v1"),
        (RAYCLUSTERS, "red-a01-x", "ray.io/v1alpha1"),
        (PODS, "red-a01-x-head", "ray.io/v2"),
    ):
        body = child(kind, name)
        body["metadata"]["ownerReferences"][0]["apiVersion"] = version
        cache.put(kind, body)
    seen = cache.observed(KEY, "j1")
    assert [owned.attempt for owned in (*seen.rayjobs, *seen.clusters, *seen.pods)] == [1, 1, 1]


def test_edited_labels_change_neither_job_nor_attempt(cache: ObjectCache) -> None:
    cache.put(RAYJOBS, child(RAYJOBS, "red-a01"))
    edited = child(RAYJOBS, "red-a01", 3, jobStatus="RUNNING")
    edited["metadata"]["labels"] |= {"diffusionrl.io/job": "blue", "diffusionrl.io/attempt": "9"}
    assert cache.put(RAYJOBS, edited) == KEY
    assert [(rayjob.attempt, rayjob.job) for rayjob in cache.observed(KEY, "j1").rayjobs] == [(1, "RUNNING")]


@pytest.mark.parametrize("restarted", [False, True])
def test_what_is_left_of_an_attempt_is_known_by_the_uids_of_its_deleted_owners(restarted: bool) -> None:
    cache = ObjectCache()
    children = {"rayJobUID": "uid-red-a01", "rayClusterUID": "uid-red-a01-x"} if restarted else {}
    cache.put(JOBS, job(children=children, attempts=1))
    if not restarted:
        for kind, name in ((RAYJOBS, "red-a01"), (RAYCLUSTERS, "red-a01-x")):
            cache.put(kind, child(kind, name))
            cache.observed(KEY, "j1")
            cache.remove(kind, child(kind, name))
    cache.put(PODS, child(PODS, "red-a01-x-head"))
    cache.put(RAYCLUSTERS, child(RAYCLUSTERS, "red-a01-x"))
    seen = cache.observed(KEY, "j1")
    assert [owned.attempt for owned in (*seen.pods, *seen.clusters)] == [1, 1]
    assert seen.leftovers == 0


def test_missed_deletions_are_found_and_objects_newer_than_the_list_stay(cache: ObjectCache) -> None:
    cache.put(RAYJOBS, child(RAYJOBS, "red-a01"))
    cache.put(RAYCLUSTERS, child(RAYCLUSTERS, "red-a01-x"))
    for name, version in (("a", 3), ("b", 4), ("c", 11)):
        cache.put(PODS, child(PODS, name, version))
    alive = {child(PODS, "a", 3)["metadata"]["uid"]}
    assert cache.remove_missing(PODS, alive, 10, "other") == set()
    assert cache.remove_missing(PODS, alive, 10) == {KEY}
    assert {pod.name for pod in cache.observed(KEY, "j1").pods} == {"a", "c"}
    assert cache.remove_missing(JOBS, (), 10) == {KEY}
    assert cache.job(KEY) is None


def test_evidence_outlives_its_pod_and_is_bounded(cache: ObjectCache) -> None:
    for kind, name in ((RAYJOBS, "red-a01"), (RAYCLUSTERS, "red-a01-x")):
        cache.put(kind, child(kind, name))
    target = [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]
    for number in range(20):
        pod = child(PODS, f"p{number}", conditions=target)
        cache.put(PODS, pod)
        cache.remove(PODS, pod)
    assert len(cache.observed(KEY, "j1").evidence) == 8


def test_all_events_of_a_job_give_the_same_key() -> None:
    cache = ObjectCache()

    def received(body: dict[str, Any]) -> dict[str, Any]:
        """A copy with its own strings, as if parsed from an answer of the API server."""
        return json.loads(json.dumps(body))

    keys = [cache.put(JOBS, received(job()))]
    keys += [cache.put(kind, received(child(kind, "red"))) for kind in (NETWORK_POLICIES, POD_MONITORS)]
    keys.append(cache.put(JOBS, received(job(version=9))))
    keys.append(cache.remove(POD_MONITORS, received(child(POD_MONITORS, "red"))))
    assert keys == [KEY] * 5
    assert {id(key) for key in keys} == {id(key) for key in cache.jobs()}


def test_each_change_of_a_shared_object_has_a_number_that_never_comes_again(cache: ObjectCache) -> None:
    seen = [cache.shared_change(KEY)]
    for version in (3, 3, 4):  # one of them is not new
        cache.put(NETWORK_POLICIES, child(NETWORK_POLICIES, "red", version))
        seen.append(cache.shared_change(KEY))
    cache.put(RAYJOBS, child(RAYJOBS, "red-a01"))
    seen.append(cache.shared_change(KEY))
    cache.remove(NETWORK_POLICIES, child(NETWORK_POLICIES, "red", 5))
    seen.append(cache.shared_change(KEY))
    assert seen == [0, 1, 1, 2, 2, 3]
    for kind, body in ((RAYJOBS, child(RAYJOBS, "red-a01")), (JOBS, job())):
        cache.remove(kind, body)
    cache.put(JOBS, job())
    cache.put(NETWORK_POLICIES, child(NETWORK_POLICIES, "red"))
    assert cache.shared_change(KEY) == 4


def test_shared_objects_are_cached_without_managed_fields() -> None:
    cache = ObjectCache()
    cache.put(NETWORK_POLICIES, child(NETWORK_POLICIES, "red"))
    body = cache.shared(KEY, NETWORK_POLICIES, "red")
    assert body["spec"] == {"a": 1}
    assert "managedFields" not in body["metadata"]


def test_objects_of_no_job_are_not_cached() -> None:
    cache = ObjectCache()
    foreign = child(PODS, "x")
    del foreign["metadata"]["labels"]
    foreign["metadata"]["ownerReferences"][0] |= {"kind": "ReplicaSet"}
    assert cache.put(PODS, foreign) is None
    with pytest.raises(UnknownKind):
        kind_of({"apiVersion": "v1", "kind": "Secret"})


# Fields of statuses.
FIELDS = (
    *("conditions", "type", "status", "reason", "state", "waiting", "containerStatuses", "endTime", "startTime"),
    *("rayJobInfo", "terminated", "exitCode", "name", "suspend"),
)


@given(
    st.dictionaries(
        st.sampled_from(["status", "spec", "extra"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(max_size=5),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=4),
            max_leaves=12,
        ),
    )
)
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_no_content_of_an_object_breaks_the_cache(parts: dict[str, Any]) -> None:
    cache = ObjectCache()
    cache.put(JOBS, job())
    for kind in (RAYJOBS, RAYCLUSTERS, PODS):
        body = {**child(kind, "red-a01"), **parts}
        cache.put(kind, body)
    assert cache.observed(KEY, "j1").newest == 1


def test_a_write_without_a_watch_event_is_overdue() -> None:
    liveness = WatchLiveness(60.0)
    liveness.expect(RAYJOBS, child(RAYJOBS, "a", 5), 0.0)
    assert not liveness.overdue(59.0)
    liveness.expect(RAYJOBS, child(RAYJOBS, "a", 9), 50.0)  # later writes do not hide the first
    assert len(liveness.overdue(61.0)) == 1
    liveness.confirm(RAYJOBS, child(RAYJOBS, "a", 8))
    assert liveness.overdue(61.0)
    liveness.confirm(RAYJOBS, child(RAYJOBS, "a", 9))
    assert not liveness.overdue(1000.0)
    liveness.confirm(RAYJOBS, child(RAYJOBS, "b", 7))
    liveness.expect(RAYJOBS, child(RAYJOBS, "b", 7), 0.0)  # the event came before the answer
    assert not liveness.overdue(1000.0)


def test_events_of_deleted_jobs_are_forgotten_and_those_just_before_an_answer_are_not() -> None:
    liveness = WatchLiveness(60.0)
    liveness.confirm(RAYJOBS, child(RAYJOBS, "early", 2))
    for number in range(2 * MAX_EARLY):
        liveness.confirm(RAYJOBS, child(RAYJOBS, f"job-{number}", 9))
        liveness.confirm(NETWORK_POLICIES, child(NETWORK_POLICIES, f"job-{number}", 9))
        liveness.confirm(RAYJOBS, child(RAYJOBS, "early", 3 + number))
    assert len(liveness._newest) == MAX_EARLY
    liveness.expect(RAYJOBS, child(RAYJOBS, "early", 2 + 2 * MAX_EARLY), 0.0)
    assert not liveness.overdue(1000.0)


@pytest.mark.parametrize("kind", [RAYJOBS, NETWORK_POLICIES])
def test_the_answer_about_an_object_that_was_deleted_meanwhile_is_ignored(cache: ObjectCache, kind: Kind) -> None:
    with cache.pass_over(KEY):
        cache.put(kind, child(kind, "red-a01", 7))
        cache.remove(kind, child(kind, "red-a01", 9))
        assert cache.put(kind, child(kind, "red-a01", 7)) is None
        assert cache.observed(KEY, "j1").rayjobs == ()
        assert cache.shared(KEY, kind, "red-a01") is None
        # Also if no other event came before; but an object that only lost its labels is there again.
        cache.remove(kind, child(kind, "red-a02", 20))
        assert cache.put(kind, child(kind, "red-a02", 19)) is None
        assert cache.put(kind, child(kind, "red-a02", 21)) == KEY
