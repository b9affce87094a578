"""Children of jobs that rest are packed: they stay the same, and take few objects."""

from __future__ import annotations

import gc
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from omni_operator.cluster.cache.cached_job import SMALL, CachedJob, Families, Family
from omni_operator.cluster.cache.object_cache import ObjectCache
from omni_operator.cluster.kinds import ALL, JOBS, NETWORK_POLICIES, PODS, RAYCLUSTERS, RAYJOBS, Kind

NAMES = ("red", "blue", "green")


def body(kind: Kind, name: str, suffix: str, version: int, owner: tuple[str, str, str] | None) -> dict[str, Any]:
    meta: dict[str, Any] = {
        "namespace": "ns", "name": f"{name}{suffix}", "uid": f"{kind.plural}-{name}{suffix}",
        "resourceVersion": str(version), "creationTimestamp": "2026-01-01T00:00:00Z",
        "labels": {"diffusionrl.io/job": name, "ray.io/group": "trainer"},
    }  # fmt: skip
    if owner:
        meta["ownerReferences"] = [{"kind": owner[0], "name": owner[1], "uid": owner[2], "controller": True}]
    state = {"terminated": {"reason": "OOMKilled", "exitCode": 137, "message": str(version)}}
    status = {"jobStatus": "RUNNING", "phase": "Failed", "containerStatuses": [{"name": "c", "state": state}]}
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": meta, "spec": {}, "status": status}


def objects(name: str, version: int = 1) -> list[tuple[Kind, dict[str, Any]]]:
    """A job and its children."""
    job, rayjob = ("DiffusionRLJob", name, f"{JOBS.plural}-{name}"), ("RayJob", f"{name}-a01", f"rayjobs-{name}-a01")
    cluster = ("RayCluster", f"{name}-a01-x", f"rayclusters-{name}-a01-x")
    made = [
        (JOBS, "", None), (RAYJOBS, "-a01", job), (NETWORK_POLICIES, "", job), (RAYCLUSTERS, "-a01-x", rayjob),
        (PODS, "-a01-x-p", cluster),
    ]  # fmt: skip
    return [(kind, body(kind, name, suffix, version, owner)) for kind, suffix, owner in made]


CHANGES = st.tuples(st.sampled_from(["put", "remove", "missing"]), st.sampled_from(NAMES), st.integers(0, 4))


def carry_out(cache: ObjectCache, change: str, kind: Kind, made: dict[str, Any], version: int) -> object:
    if change == "put":
        return cache.put(kind, made)
    if change == "remove":
        return cache.remove(kind, made)
    gone = cache.remove_missing(kind, {f"{kind.plural}-red"}, version - 2)
    return gone, cache.is_newer(kind, {}, version)


def observe(cache: ObjectCache) -> list[object]:
    seen: list[object] = [cache.jobs()]
    for name in NAMES:
        key = ("ns", name)
        seen += [cache.observed(key, f"{JOBS.plural}-{name}"), cache.uid(key), cache.summary(key), cache.job(key)]
        seen += [cache.shared(key, NETWORK_POLICIES, name)]
    return seen


@given(st.lists(CHANGES, max_size=40))
@settings(max_examples=100, deadline=None)
def test_a_cache_that_packs_all_children_observes_the_same(changes: list[tuple[str, str, int]]) -> None:
    packing, keeping = ObjectCache(awake=1), ObjectCache(awake=100)
    for version, (change, name, number) in enumerate(changes, 1):
        kind, made = objects(name, version)[number]
        answers = [carry_out(cache, change, kind, made, version) for cache in (packing, keeping)]
        assert answers[0] == answers[1]
        assert observe(packing) == observe(keeping)


def test_kinds_are_the_same_objects_after_unpacking() -> None:
    families, jobs = Families(most=1), [CachedJob(("ns", name)) for name in NAMES]
    for kind in ALL:
        families.of(jobs[0]).children[kind, "x"] = None  # type: ignore[assignment]
        if len(families.of(jobs[0]).children) == SMALL:
            families.of(jobs[1])
            assert isinstance(jobs[0].family, bytes)
            assert all(found in ALL for found, _ in families.of(jobs[0]).children)
            assert {id(found) for found, _ in families.of(jobs[0]).children} <= {id(known) for known in ALL}
            families.of(jobs[0]).children.clear()


def test_families_with_many_children_are_not_packed() -> None:
    families, jobs = Families(most=1), [CachedJob(("ns", name)) for name in NAMES]
    family = families.of(jobs[0])
    family.children = {(PODS, str(number)): None for number in range(SMALL + 1)}  # type: ignore[misc]
    families.of(jobs[1])
    assert jobs[0].family is family
    families.of(jobs[2])
    assert isinstance(jobs[1].family, bytes)
    assert families.of(jobs[1]) == Family()


def test_a_job_that_rests_is_a_few_objects_and_a_deleted_one_none() -> None:
    cache, count = ObjectCache(awake=10), 200
    # Without pods, as jobs that wait or have ended.
    made = [found for number in range(count) for found in objects(f"job-{number}")[:3]]
    for kind, each in made[: len(made) // 2]:
        cache.put(kind, each)
    half = reachable(cache)
    for kind, each in made[len(made) // 2 :]:
        cache.put(kind, each)
    assert (reachable(cache) - half) / (count / 2) < 14, "25 if its children are not packed"
    for kind, each in made:
        cache.remove(kind, each)
    assert reachable(cache) < 100


def reachable(cache: ObjectCache) -> int:
    """Number of objects that a cache refers to, at any depth."""
    seen, waiting = set[int](), list[object]([cache])
    while waiting:
        found = waiting.pop()
        if id(found) not in seen and not isinstance(found, type):
            seen.add(id(found))
            waiting += gc.get_referents(found)
    return len(seen)
