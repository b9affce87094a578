"""Time until a suspension takes effect while another namespace gets hundreds of jobs, on a real API server and etcd.

    PYTHONPATH=. python benchmarks/operator_fairness.py [--jobs 800] [--seconds 120] [--before CHECKOUT] [--out FILE]

The new jobs of the one namespace have a long text in their spec. Jobs of the other namespace are suspended one after
another meanwhile, and until all new jobs have their RayJobs. No job has pods: no KubeRay runs.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import budgets_page
import httpx
import page_tables
from job_spec import SPEC
from operator_stack import JOBS, QUIET, RAYJOBS, count, empty_plane, settled, submit, wait_for
from results import arguments, table, write

from e2e.operator_process import ROOT, operator

OTHERS = JOBS.replace("/default/", "/other/")
PATIENCE = 600.0
OTHER_JOBS, APART_SECONDS = 150, 1.0  # jobs of the other namespace, and between two suspensions
PAUSE = 0.1  # seconds between two looks at the status: the operator is to be the load


@dataclass(frozen=True)
class Suspension:
    """Seconds of the request to suspend a job, from then to the operator's first answer to it in the status, and to the
    status that the job has no pods.
    """

    request: float
    served: float
    suspended: float


def suspend(client: httpx.Client, name: str) -> Suspension:
    """Suspend a job of the other namespace."""
    began = time.monotonic()
    headers, path = {"Content-Type": "application/merge-patch+json"}, f"{OTHERS}/{name}"
    answer = client.patch(path, headers=headers, json={"spec": {"suspend": True}}).raise_for_status()
    generation, request = answer.json()["metadata"]["generation"], time.monotonic() - began
    status: dict[str, Any] = {}

    def read(good: Callable[[], bool]) -> bool:
        status.update(client.get(path).raise_for_status().json().get("status") or {})
        return good()

    served = lambda: status.get("observedGeneration") == generation  # noqa: E731
    suspended = lambda: status.get("state") == "Suspended"  # noqa: E731
    first = wait_for(f"an answer for {name}", lambda: read(served), PATIENCE, pause=PAUSE)
    return Suspension(request, first, first + wait_for(name, lambda: read(suspended), PATIENCE, pause=PAUSE))


def burst(client: httpx.Client, jobs: int, seconds: int) -> None:
    """Create the jobs, as many each second."""
    texts = {f"example.com/text-{number}": "x" * 4000 for number in range(3)}
    spec = {**SPEC, "trainer": {**SPEC["trainer"], "podTemplate": {"metadata": {"annotations": texts}}}}
    began = time.monotonic()
    for second in range(seconds):
        time.sleep(max(0.0, began + second - time.monotonic()))
        submit(client, [f"job-{number}" for number in range(jobs) if number * seconds // jobs == second], spec)


def measure(jobs: int, seconds: int, checkout: Path = ROOT) -> dict[str, Any]:
    """Seconds of suspensions before the burst, and from its begin until all its jobs have RayJobs."""
    with empty_plane(checkout) as (plane, client, folder):
        client.post("/api/v1/namespaces", json={"metadata": {"name": "other"}}).raise_for_status()
        with operator(plane, folder, checkout=checkout, **QUIET) as running:
            names = [f"red-{number}" for number in range(OTHER_JOBS)]
            submit(client, names, path=OTHERS)
            wait_for("RayJobs", lambda: count(client, RAYJOBS.replace("/default/", "/other/")) >= len(names), PATIENCE)
            settled(running)
            quiet = [suspend(client, names.pop()) for _ in range(5)]
            thread = threading.Thread(target=burst, args=(client, jobs, seconds))
            began, during = time.monotonic(), list[Suspension]()
            thread.start()
            while names and (thread.is_alive() or count(client, RAYJOBS) < jobs):
                during.append(suspend(client, names.pop()))
                time.sleep(APART_SECONDS)
            thread.join()
            wait_for("all RayJobs", lambda: count(client, RAYJOBS) >= jobs, PATIENCE)
            taken = time.monotonic() - began
    return {
        "jobs": jobs, "seconds": seconds, "taken_s": taken, "suspensions": len(during),
        **medians("quiet", quiet), **medians("during", during),
    }  # fmt: skip


def medians(name: str, found: list[Suspension]) -> dict[str, float]:
    """Medians and the largest values."""
    values = {part: [getattr(each, part) for each in found] for part in ("request", "served", "suspended")}
    return {
        **{f"{name}_{part}_s": statistics.median(given) for part, given in values.items()},
        **{f"{name}_{part}_max_s": max(given) for part, given in values.items()},
    }


def main() -> None:
    """Measure, print and write the figures."""
    parser = arguments(__doc__, "operator_fairness", 1)
    parser.add_argument("--jobs", type=int, default=800, help="new jobs")
    parser.add_argument("--seconds", type=int, default=120, help="in which they are created")
    parser.add_argument("--before", type=Path, help="checkout of an earlier revision, to compare with")
    given = parser.parse_args()
    checkouts = [ROOT, given.before.resolve()] if given.before else [ROOT]
    runs = [measure(given.jobs, given.seconds, checkout) for checkout in checkouts for _ in range(given.repeats)]
    columns = ["taken_s", "suspensions", "quiet_served_s", "during_request_s", "during_served_s", "during_served_max_s"]
    write(given.out, runs)
    table(runs, columns)
    page_tables.update(budgets_page.PAGE, budgets_page.TABLES, given.out)


if __name__ == "__main__":
    main()
