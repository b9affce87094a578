"""Restart, memory, metrics, latency and deletion of the operator with thousands of jobs, on a real API server and etcd.

    PYTHONPATH=. python benchmarks/operator_scale.py [--jobs 5000] [--deleted 1000] [--out FILE]

The jobs have their RayJobs and no pods: no KubeRay runs. Memory is measured while the operator's process is idle.
"""

import statistics
import threading
import time
from pathlib import Path
from typing import Any

import budgets_page
import httpx2
import page_tables
from operator_stack import (
    JOBS,
    QUIET,
    RAYJOBS,
    Arrivals,
    count,
    delete,
    empty_plane,
    names,
    processor_seconds,
    resident,
    settled,
    submit,
    wait_for,
)
from results import arguments, table, write

from e2e.cluster.control_plane import ControlPlane
from e2e.operator_process import RunningOperator, operator

PATIENCE = 1800.0
RATE = 5.0
STREAM_SECONDS = 30.0


def idle_memory(running: RunningOperator) -> float:
    """Resident memory in MiB, once all passes have ended."""
    settled(running)
    return resident(running)


def percentile(values: list[float], share: float) -> float:
    """The smallest value that at least this share of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def scrape(running: RunningOperator) -> dict[str, float]:
    """Seconds of three scrapes, and the slowest probe meanwhile."""
    probes: list[float] = []
    end = threading.Event()

    def probe() -> None:
        while not end.is_set():
            began = time.monotonic()
            running.page("/healthz").raise_for_status()
            probes.append(time.monotonic() - began)

    thread = threading.Thread(target=probe)
    thread.start()
    seconds = []
    for _ in range(3):
        time.sleep(0.5)
        began = time.monotonic()
        httpx2.get(f"http://127.0.0.1:{running.http}/metrics", timeout=60, trust_env=False).raise_for_status()
        seconds.append(time.monotonic() - began)
    end.set()
    thread.join()
    return {"scrape_s": statistics.median(seconds), "slowest_probe_s": max(probes)}


def stream(plane: ControlPlane, client: httpx2.Client) -> dict[str, float]:
    """Latency from the creation of a job to its RayJob, at a fixed rate."""
    created: dict[str, float] = {}
    with Arrivals(plane).recorded() as arrivals:
        began = time.monotonic()
        for number in range(int(RATE * STREAM_SECONDS)):
            time.sleep(max(0.0, began + number / RATE - time.monotonic()))
            created[f"new-{number}"] = time.monotonic()
            submit(client, [f"new-{number}"])
        wait_for("RayJobs of new jobs", lambda: set(created) <= set(arrivals.at), 120.0)
        seconds = [arrivals.at[name] - at for name, at in created.items()]
    return {"latency_p50_s": statistics.median(seconds), "latency_p99_s": percentile(seconds, 0.99)}


def served(plane: ControlPlane, client: httpx2.Client, name: str) -> float:
    """Seconds until a new job has a RayJob."""
    with Arrivals(plane).recorded() as arrivals:
        began = time.monotonic()
        submit(client, [name])
        wait_for(f"the RayJob of {name}", lambda: name in arrivals.at, 600.0, pause=0.02)
        return arrivals.at[name] - began


def fill(plane: ControlPlane, client: httpx2.Client, jobs: int, folder: Path) -> dict[str, float]:
    """Figures of one operator from no job to all of them, then of a scrape and of a stream of new jobs."""
    with operator(plane, folder, **QUIET) as running:
        empty = idle_memory(running)
        used = processor_seconds(running)
        began = time.monotonic()
        submit(client, [f"job-{number}" for number in range(jobs)])
        wait_for("all RayJobs", lambda: count(client, RAYJOBS) >= jobs, PATIENCE)
        minutes = (time.monotonic() - began) / 60
        settled(running)
        figures = {
            "memory_empty_mib": empty,
            "created_per_minute": jobs / minutes,
            "cpu_per_created_job_ms": (processor_seconds(running) - used) * 1000 / jobs,
            "memory_full_mib": idle_memory(running),
        }
        return {**figures, **scrape(running), **stream(plane, client)}


def restart(plane: ControlPlane, client: httpx2.Client, deleted: int, empty: float, folder: Path) -> dict[str, float]:
    """Figures of a second operator over the same jobs: start, a new job, memory against `empty`, deletion."""
    began = time.monotonic()
    with operator(plane, folder, **QUIET) as running:
        ready = time.monotonic() - began
        used = processor_seconds(running)
        figures = {"ready_s": ready, "ready_cpu_s": used, "new_job_s": served(plane, client, "after-restart")}
        settled(running)
        figures["passes_cpu_s"] = processor_seconds(running) - used
        before = idle_memory(running)
        jobs = count(client, JOBS)
        figures |= {"memory_restarted_mib": before, "memory_per_job_kib": (before - empty) * 1024 / jobs}
        began = time.monotonic()
        used = processor_seconds(running)
        delete(client, [f"job-{number}" for number in range(deleted)])
        figures["deletion_requests_s"] = time.monotonic() - began
        wait_for(
            "deleted jobs and their RayJobs to be gone",
            lambda: max(count(client, JOBS), count(client, RAYJOBS)) <= jobs - deleted,
            PATIENCE,
        )
        figures["deletion_s"] = time.monotonic() - began
        settled(running)
        figures["cpu_per_deleted_job_ms"] = (processor_seconds(running) - used) * 1000 / deleted
        # One request for the whole collection would exceed the API server's limit of 60 seconds.
        delete(client, names(client))
        wait_for(
            "all jobs and RayJobs to be gone", lambda: not (count(client, JOBS) or count(client, RAYJOBS)), PATIENCE
        )
        return {**figures, "memory_after_deletion_mib": idle_memory(running)}


def measure(jobs: int, deleted: int) -> dict[str, Any]:
    """All figures."""
    with empty_plane() as (plane, client, folder):
        first = fill(plane, client, jobs, folder)
        again = restart(plane, client, deleted, first["memory_empty_mib"], folder)
        return {"jobs": jobs, "deleted": deleted, **first, **again}


def main() -> None:
    """Measure, print and write the figures."""
    parser = arguments(__doc__, "operator_scale", 1)
    parser.add_argument("--jobs", type=int, default=5000)
    parser.add_argument(
        "--deleted", type=int, default=1000, help="jobs whose deletion is timed; afterwards the rest is deleted"
    )
    chosen = parser.parse_args()
    runs = [measure(chosen.jobs, min(chosen.deleted, chosen.jobs)) for _ in range(chosen.repeats)]
    table([{"figure": name, "value": value} for name, value in runs[0].items()], ["figure", "value"])
    write(chosen.out, runs)
    page_tables.update(budgets_page.PAGE, budgets_page.TABLES, chosen.out)


if __name__ == "__main__":
    main()
