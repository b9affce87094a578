"""Time until a suspension takes effect while another namespace gets hundreds of jobs, on a real API server and etcd.

    PYTHONPATH=. python benchmarks/operator_fairness.py [--jobs 800] [--seconds 120] [--out FILE]

First the operator's queue alone, with the API server in memory, then all of it: the API server itself answers later
when it gets many requests. The new jobs of the one namespace have a long text in their spec. Jobs of the other
namespace are suspended one after another meanwhile, until all new jobs have their RayJobs. No job has pods.
"""

import asyncio
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import budgets_page
import httpx2
import page_tables
from job_spec import SPEC
from operator_stack import JOBS, QUIET, RAYJOBS, count, empty_plane, settled, submit, wait_for
from results import arguments, table, write

from e2e.fake_cluster import FakeCluster
from e2e.operator_process import operator
from omni_operator.cluster.cache.object_cache import ObjectCache
from omni_operator.cluster.kinds import JOBS as KINDS_JOBS
from omni_operator.cluster.kinds import NETWORK_POLICIES
from omni_operator.cluster.kinds import RAYJOBS as KINDS_RAYJOBS
from omni_operator.cluster.server_clock import utc_now
from omni_operator.handlers.job_workers import JobWorkers
from omni_operator.plan import ClusterSettings
from omni_operator.reconcile.reconciler import Reconciler
from omni_operator.reports.endpoint import ReportStore

if TYPE_CHECKING:
    from omni_operator.cluster.protocol import Cluster

OTHERS = JOBS.replace("/default/", "/other/")
PATIENCE = 600.0
# jobs of the other namespace, and between two suspensions
OTHER_JOBS = 150
APART_SECONDS = 1.0
REQUEST_SECONDS = 0.05  # of each request to the API server in memory
PAUSE = 0.1  # seconds between two looks at the status: the operator is to be the load


@dataclass(frozen=True)
class Suspension:
    """Seconds of the request to suspend a job, from then to the operator's first answer to it in the status, and to the
    status that the job has no pods.
    """

    request: float
    served: float
    suspended: float


def suspend(client: httpx2.Client, name: str) -> Suspension:
    """Suspend a job of the other namespace."""
    began = time.monotonic()
    headers = {"Content-Type": "application/merge-patch+json"}
    path = f"{OTHERS}/{name}"
    answer = client.patch(path, headers=headers, json={"spec": {"suspend": True}}).raise_for_status()
    generation = answer.json()["metadata"]["generation"]
    request = time.monotonic() - began
    status: dict[str, Any] = {}

    def read(good: Callable[[], bool]) -> bool:
        status.update(client.get(path).raise_for_status().json().get("status") or {})
        return good()

    served = lambda: status.get("observedGeneration") == generation  # noqa: E731
    suspended = lambda: status.get("state") == "Suspended"  # noqa: E731
    first = wait_for(f"an answer for {name}", lambda: read(served), PATIENCE, pause=PAUSE)
    return Suspension(request, first, first + wait_for(name, lambda: read(suspended), PATIENCE, pause=PAUSE))


def burst(client: httpx2.Client, jobs: int, seconds: int) -> None:
    """Create the jobs, as many each second."""
    texts = {f"example.com/text-{number}": "x" * 4000 for number in range(3)}
    spec = {**SPEC, "trainer": {**SPEC["trainer"], "podTemplate": {"metadata": {"annotations": texts}}}}
    began = time.monotonic()
    for second in range(seconds):
        time.sleep(max(0.0, began + second - time.monotonic()))
        submit(client, [f"job-{number}" for number in range(jobs) if number * seconds // jobs == second], spec)


def measure(jobs: int, seconds: int) -> dict[str, Any]:
    """Seconds of suspensions before the burst, and from its begin until all its jobs have RayJobs."""
    with empty_plane() as (plane, client, folder):
        client.post("/api/v1/namespaces", json={"metadata": {"name": "other"}}).raise_for_status()
        with operator(plane, folder, **QUIET) as running:
            names = [f"red-{number}" for number in range(OTHER_JOBS)]
            submit(client, names, path=OTHERS)
            wait_for("RayJobs", lambda: count(client, RAYJOBS.replace("/default/", "/other/")) >= len(names), PATIENCE)
            settled(running)
            quiet = [suspend(client, names.pop()) for _ in range(5)]
            thread = threading.Thread(target=burst, args=(client, jobs, seconds))
            began = time.monotonic()
            during = list[Suspension]()
            thread.start()
            while names and (thread.is_alive() or count(client, RAYJOBS) < jobs):
                during.append(suspend(client, names.pop()))
                time.sleep(APART_SECONDS)
            thread.join()
            wait_for("all RayJobs", lambda: count(client, RAYJOBS) >= jobs, PATIENCE)
            taken = time.monotonic() - began
    return {
        "jobs": jobs,
        "seconds": seconds,
        "taken_s": taken,
        "suspensions": len(during),
        **medians("quiet", quiet),
        **medians("during", during),
    }


def medians(name: str, found: list[Suspension]) -> dict[str, float]:
    """Medians and the largest values."""
    values = {part: [getattr(suspension, part) for suspension in found] for part in ("request", "served", "suspended")}
    return {
        **{f"{name}_{part}_s": statistics.median(seconds) for part, seconds in values.items()},
        **{f"{name}_{part}_max_s": max(seconds) for part, seconds in values.items()},
    }


class SlowCluster:
    """The API server in memory, which takes a while for each request."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster

    def __getattr__(self, name: str) -> Callable[..., Any]:
        async def answer(*given: Any, **named: Any) -> Any:
            await asyncio.sleep(REQUEST_SECONDS)
            return await getattr(self._cluster, name)(*given, **named)

        return answer


async def measure_queue(jobs: int) -> dict[str, float]:
    """Seconds that the operator alone takes for an event of one namespace while another one gets jobs, all at once."""
    cluster = FakeCluster(utc_now)
    cache = ObjectCache()
    reconciler = Reconciler(
        cluster=cast("Cluster", SlowCluster(cluster)),
        cache=cache,
        reports=ReportStore(),
        clock=utc_now,
        settings=ClusterSettings(image="rollout:1"),
        instance="benchmark",
    )
    workers = JobWorkers(
        reconciler.reconcile,
        rank=lambda key: summary.rank if (summary := cache.summary(key)) else 1,
        revision=lambda key: summary.revision if (summary := cache.summary(key)) else None,
        resync=lambda: 3600.0,
        measured=lambda result, seconds: None,
        clock=utc_now,
        passes=16,
    )
    seen = 0

    async def until(good: Callable[[], object], pause: float = 0.01) -> float:
        """Deliver events until something is true; seconds that it took."""
        nonlocal seen
        began = time.monotonic()
        while not good():
            await asyncio.sleep(pause)
            events = cluster.events[seen:]
            seen = len(cluster.events)
            for change, kind, body in events:
                if kind in (KINDS_JOBS, KINDS_RAYJOBS, NETWORK_POLICIES):
                    key = cache.remove(kind, body) if change == "DELETED" else cache.put(kind, body)
                    if key:
                        workers.wake(key)
            cluster.collect()
        return time.monotonic() - began

    def create(namespace: str, count: int) -> None:
        for number in range(count):
            meta = {"namespace": namespace, "name": f"job-{number}"}
            cluster.make(
                {"apiVersion": KINDS_JOBS.api_version, "kind": KINDS_JOBS.kind, "metadata": meta, "spec": SPEC}
            )

    create("other", 20)
    await until(lambda: len(cluster.all(KINDS_RAYJOBS)) == 20 and not workers.tasks)
    create("default", jobs)
    seconds = []
    for number in range(20):
        body = cluster.change(KINDS_JOBS, "other", f"job-{number}", spec={"suspend": True})
        generation = body["metadata"]["generation"]
        key_of_job = ("other", f"job-{number}")

        def served() -> bool:
            job = cluster.get(KINDS_JOBS, *key_of_job)  # noqa: B023 - called before the next one
            return job is not None and (job.get("status") or {}).get("observedGeneration") == generation  # noqa: B023

        seconds.append(await until(served))
    left = workers.depth
    await workers.stop(10)
    return {"queue_served_s": statistics.median(seconds), "queue_served_max_s": max(seconds), "queue_left": float(left)}


def main() -> None:
    """Measure, print and write the figures."""
    parser = arguments(__doc__, "operator_fairness", 1)
    parser.add_argument("--jobs", type=int, default=800, help="new jobs")
    parser.add_argument("--seconds", type=int, default=120, help="in which they are created")
    chosen = parser.parse_args()
    runs = [
        {**measure(chosen.jobs, chosen.seconds), **asyncio.run(measure_queue(chosen.jobs))}
        for _ in range(chosen.repeats)
    ]
    columns = ["queue_served_max_s", "queue_left", "taken_s", "during_request_s", "during_served_s"]
    write(chosen.out, runs)
    table(runs, columns)
    page_tables.update(budgets_page.PAGE, budgets_page.TABLES, chosen.out)


if __name__ == "__main__":
    main()
