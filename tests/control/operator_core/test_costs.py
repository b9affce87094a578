"""Cost of a job: what its passes validate, check, render and write, and the memory of one that is idle."""

import asyncio
import gc
import json
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from control.api.job_documents import SMALLEST
from control.operator_core.pools import KEY
from omni_operator.api.names import CHECKSUM_ANNOTATION
from omni_operator.cluster.cache.object_cache import ObjectCache
from omni_operator.cluster.kinds import JOBS, NETWORK_POLICIES, PODS, RAYCLUSTERS, RAYJOBS, Body, Kind
from omni_operator.handlers.job_workers import JobWorkers
from omni_operator.plan import ClusterSettings
from omni_operator.plan.digest import digest_checked
from omni_operator.plan.refusals import ANNOTATIONS_BYTES
from omni_operator.reconcile import spec_cache
from omni_operator.reconcile.spec_cache import KEPT, InvalidSpec, SpecCache, ValidSpec
from omni_operator.reconcile.subject import ReconcileResult

SPEC: dict[str, Any] = SMALLEST["spec"]
TEMPLATE = {"spec": {"containers": [{"name": "ray", "env": [{"name": "A", "value": "b"}]}]}}
DERIVED = ("describe_refusals", "render_job_objects", "render_attempt", "digest_attempt", "digest_spec")


@pytest.fixture
def derived(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Calls of each function that derives something from a spec; `_parse` validates a whole job."""
    counts: Counter[str] = Counter()

    def count(name: str) -> None:
        function: Callable[..., Any] = getattr(spec_cache, name)

        def counted(*given: Any) -> Any:
            counts[name] += 1
            return function(*given)

        monkeypatch.setattr(spec_cache, name, counted)

    for name in (*DERIVED, "_parse"):
        count(name)
    return counts


@pytest.fixture
def new_valid_specs() -> Callable[[], int]:
    """The number of parsed specifications that are in memory and were not before the test."""

    def alive() -> list[int]:
        gc.collect()
        return [id(value) for value in gc.get_objects() if type(value) is ValidSpec]

    before = set(alive())
    return lambda: sum(identity not in before for identity in alive())


async def start(simulation: Any) -> None:
    accelerator = {"vendor": "NVIDIA", "count": 2}
    await simulation.submit_running(trainer={"totalSteps": 10, "accelerator": accelerator, "podTemplate": TEMPLATE})
    for step in range(1, 4):
        simulation.report(step=step)
        await simulation.after(20)
    assert simulation.condition("Ready").status == "True"


async def test_a_generation_is_validated_checked_and_rendered_once(simulation: Any, derived: Counter[str]) -> None:
    await start(simulation)
    assert simulation.passes > 5
    once = {"_parse": 1, "describe_refusals": 1, "render_job_objects": 1}
    assert derived == {**once, "render_attempt": 1}
    derived.clear()
    await simulation.edit_and_settle(seed=7)
    compared = {"digest_attempt": 1, "digest_spec": 1}
    assert derived == {**once, **compared}, "the running attempt is compared with the new specification"


def test_few_specifications_stay_and_each_change_of_a_job_counts(derived: Counter[str]) -> None:
    cache = SpecCache()
    settings = ClusterSettings(image="rollout:1")

    def body(number: int = 0, **meta: Any) -> dict[str, Any]:
        metadata = {"namespace": KEY[0], "name": f"job-{number}", "uid": f"u{number}", "generation": 1, **meta}
        return {**SMALLEST, "metadata": metadata}

    first = cache.get(KEY, body(), settings)
    assert isinstance(first, ValidSpec)
    assert cache.get(KEY, {**body(), "status": {"attempts": 1}}, settings) is first
    for changed in ({"generation": 2}, {"uid": "u9"}, {"labels": {"a": "b"}}, {"annotations": {"a": "b"}}):
        assert cache.get(KEY, body(**changed), settings) is not first
    invalid = {**body(generation=3), "spec": {}}
    assert "spec.model: " in str(cache.get(KEY, invalid, settings))
    derived.clear()
    for number in range(KEPT + 1):
        cache.get((KEY[0], f"job-{number}"), body(number), settings)
    assert derived["_parse"] == KEPT + 1
    cache.get((KEY[0], f"job-{KEPT}"), body(KEPT), settings)
    assert derived["_parse"] == KEPT + 1
    cache.get((KEY[0], "job-0"), body(0), settings)
    assert derived["_parse"] == KEPT + 2, "the oldest was dropped"


@pytest.mark.slow
@pytest.mark.parametrize("part", ["spec", "labels"])
def test_a_job_that_is_too_large_for_its_pods_is_not_even_parsed(
    derived: Counter[str], new_valid_specs: Callable[[], int], part: str
) -> None:
    """64 jobs of the 1.5 MB that etcd takes would be 800 MB of parsed specifications."""
    cache = SpecCache()
    settings = ClusterSettings(image="rollout:1")
    objects = ObjectCache()
    tolerations = [{} for _ in range(ANNOTATIONS_BYTES // 3)]
    template = {"spec": {"tolerations": tolerations}} if part == "spec" else TEMPLATE
    labels = {f"label-{number}": "" for number in range(ANNOTATIONS_BYTES // 10)} if part == "labels" else {}
    meta = {"namespace": KEY[0], "name": KEY[1], "uid": "u", "generation": 1}
    spec = {**SPEC, "trainer": {"totalSteps": 10, "podTemplate": template}}
    large = {**SMALLEST, "metadata": {**meta, "labels": labels}, "spec": spec}
    small = {**large, "metadata": {**meta, "generation": 2}, "spec": SPEC}
    for version, body in enumerate((small, large), 1):
        body["metadata"]["resourceVersion"] = str(version)
        objects.put(JOBS, body)
        kept = objects.job(KEY)
        parsed = cache.get(KEY, kept, settings)
    assert len(json.dumps(kept)) < 1000, "only the reason is kept"
    assert isinstance(parsed, InvalidSpec) and parsed.job is None
    assert f"characters as JSON, with the labels of the job: at most {ANNOTATIONS_BYTES}" in parsed.refused
    assert derived["_parse"] == 1
    assert new_valid_specs() == 0, "nothing of the generation before is kept either"


COUNT = 400  # so many that what other threads allocate meanwhile does not count
KINDS = (RAYJOBS, RAYCLUSTERS, NETWORK_POLICIES, JOBS)


@pytest.mark.slow  # it traces every allocation
async def test_a_cached_job_takes_less_than_20_kib_and_a_deleted_one_nothing(simulation: Any) -> None:
    await simulation.submit_running()
    await simulation.report_and_settle(step=3, **{"reward/mean": 0.25, "weights/version": 3, "samples": 96})
    texts = [(kind, json.dumps(body)) for kind in (*KINDS, PODS) for body in simulation.cluster.all(kind)]

    def copies(*kinds: Kind) -> Iterator[tuple[Kind, Body]]:
        """The objects of other jobs, one at a time, as a watch delivers them."""
        for number in range(COUNT):
            for kind, text in texts:
                if kind in kinds:
                    body = json.loads(text.replace("red", f"job-{number}").replace("uid-", f"uid-{number}-"))
                    if kind == RAYJOBS:
                        body["metadata"]["annotations"][CHECKSUM_ANNOTATION] = digest_checked(body)
                    yield kind, body

    async def reconcile(key: tuple[str, str]) -> ReconcileResult:
        return ReconcileResult(result="ok" if cache.job(key) else "gone")

    async def passes() -> int:
        """Wake all jobs; return the memory in use after the passes."""
        for number in range(COUNT):
            workers.wake(("team-a", f"job-{number}"))
        while workers.depth or workers.tasks:
            await asyncio.sleep(0)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    cache = ObjectCache()
    workers = JobWorkers(
        reconcile,
        rank=lambda key: 1,
        revision=lambda key: None,
        resync=lambda: 3600.0,
        measured=lambda result, seconds: None,
        clock=lambda: datetime(2026, 1, 1, tzinfo=UTC),
        passes=16,
    )
    for kind, body in copies(*KINDS):  # what is made once, at first use, is not of a job
        cache.put(kind, body)
        cache.remove(kind, body)
    await passes()
    tracemalloc.start()
    try:
        empty = await passes()
        for kind, body in copies(*KINDS):
            cache.put(kind, body)
        full = await passes()
        for kind, body in copies(PODS):
            cache.put(kind, body)
        with_pods = await passes()
        for kind, body in copies(*KINDS, PODS):
            cache.remove(kind, body)
        end = await passes()
    finally:
        tracemalloc.stop()
    await workers.stop(10)
    assert len(cache.jobs()) == 0
    assert (full - empty) / COUNT < 20 * 1024
    assert (with_pods - full) / COUNT < 2 * 1024, "a head and a worker"
    assert end - empty < 0.05 * (full - empty), "the tables of two dictionaries"
