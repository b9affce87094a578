"""Resident memory of the operator's cache with thousands of jobs, and after their deletion. No API server is needed.

    PYTHONPATH=.:operator python benchmarks/operator_memory.py [--jobs 5000] [--out FILE]

The process imports what the operator does. Each job has a status, its RayJob and NetworkPolicy, as the API server sends
them. `deleted_mib` is what stays after all jobs were deleted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import budgets_page
import page_tables
from job_spec import SPEC
from results import FIGURES, table, write

if TYPE_CHECKING:
    from omni_operator.cluster.kinds import Body, Kind

NAME = "one-of-many"
UID = "uid-"
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def resident() -> float:
    """Resident memory of this process in MiB."""
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) / 1024


def objects() -> list[tuple[Kind, str]]:
    """The objects of one job after its first pass as JSON; its name is `NAME`, and uids begin with `UID`."""
    from e2e.fake_cluster import FakeCluster
    from omni_operator import plan
    from omni_operator.cluster.cache.object_cache import ObjectCache
    from omni_operator.cluster.kinds import JOBS, NETWORK_POLICIES, RAYJOBS
    from omni_operator.reconcile.reconciler import Reconciler
    from omni_operator.reports.endpoint import ReportStore

    cluster = FakeCluster(lambda: NOW)
    cache = ObjectCache()
    meta = {"name": NAME, "namespace": "default"}
    cache.put(JOBS, cluster.make({"apiVersion": JOBS.api_version, "kind": JOBS.kind, "metadata": meta, "spec": SPEC}))
    reconciler = Reconciler(
        cluster=cluster,
        cache=cache,
        reports=ReportStore(),
        settings=plan.ClusterSettings(image="rollout:1"),
        clock=lambda: NOW,
        instance="benchmark",
    )
    asyncio.run(reconciler.reconcile(("default", NAME)))
    return [(kind, json.dumps(body)) for kind in (JOBS, RAYJOBS, NETWORK_POLICIES) for body in cluster.all(kind)]


def copies(texts: list[tuple[Kind, str]], jobs: int) -> Iterator[tuple[Kind, Body]]:
    """The objects of all jobs, one at a time, as a watch delivers them; their uids have 36 characters."""
    from omni_operator.api.names import CHECKSUM_ANNOTATION
    from omni_operator.plan.digest import digest_checked

    for number in range(jobs):
        uid = f"{number * 7919:08x}-4b11-4c4e-9d2a-{number:011x}"
        for kind, text in texts:
            body = json.loads(text.replace(NAME, f"job-{number}").replace(UID, uid))
            if CHECKSUM_ANNOTATION in body["metadata"].get("annotations", ()):  # of a RayJob, which it has to match
                body["metadata"]["annotations"][CHECKSUM_ANNOTATION] = digest_checked(body)
            yield kind, body


def measure(jobs: int) -> dict[str, float]:
    """All figures, in MiB."""
    from omni_operator import main  # noqa: F401 - imports all that the operator's process does
    from omni_operator.cluster.cache.object_cache import ObjectCache

    cache = ObjectCache()
    texts = objects()
    figures = {"jobs": float(jobs), "empty_mib": resident()}
    for kind, body in copies(texts, jobs):
        cache.put(kind, body)
    figures |= {"full_mib": resident(), "kib_per_job": (resident() - figures["empty_mib"]) * 1024 / jobs}
    for kind, body in copies(texts, jobs):
        cache.remove(kind, body)
    return {**figures, "deleted_mib": resident()}


def main() -> None:
    """Measure, print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=5000)
    parser.add_argument("--out", type=Path, default=FIGURES / "operator_memory.json")
    chosen = parser.parse_args()
    figures = measure(chosen.jobs)
    table([{"figure": name, "value": value} for name, value in figures.items()], ["figure", "value"])
    write(chosen.out, [figures])
    page_tables.update(budgets_page.PAGE, budgets_page.TABLES, chosen.out)


if __name__ == "__main__":
    main()
