"""Cost of creating jobs, on a real API server and etcd: jobs a minute, the operator's CPU, API requests of a job.

    PYTHONPATH=. python benchmarks/operator_create.py [--jobs 300] [--repeats N] [--profile FILE] [--out FILE]

All jobs are submitted at once, and each turn ends when every job has its RayJob and its status. No KubeRay runs. For
comparison, after the operator has ended, as many jobs are submitted again, and each gets what an operator writes that
reconciles by forced server-side apply: finalizer, ConfigMap, Service, NetworkPolicy, RayJob and status, six applies.
The API server's time covers everything it does meanwhile, also watches and controllers, less its time in an idle period
of the same length. Its allocations are counted the same way, and are less noisy. The submission of as many jobs while
no operator runs is measured last, and the ratios are of the rest. Created objects are read from the audit log, so that
the benchmark has no watch. The API server's CPU profile of the first 30 seconds of the last turn goes to a file, which
`go tool pprof` reads.
"""

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import budgets_page
import httpx2
import page_tables
from operator_stack import (
    JOBS,
    QUIET,
    RAYJOBS,
    count,
    delete,
    empty_plane,
    http,
    processor_seconds,
    server_seconds,
    settled,
    submit,
    wait_for,
)
from results import arguments, spread, table, write

from e2e.cluster.audit import Call, Mark
from e2e.cluster.control_plane import ControlPlane
from e2e.operator_process import AGENT, RunningOperator, operator
from omni_operator import plan
from omni_operator.api import DiffusionRLJob
from omni_operator.cluster.kinds import kind_of

PATIENCE = 600.0
SETTLED = 4.0
IDLE = 20.0
PROFILE_SECONDS = 30
WRITES = ("create", "patch", "update", "delete")
APPLY = {"Content-Type": "application/apply-patch+yaml"}


@contextmanager
def profiled(plane: ControlPlane, file: Path | None) -> Iterator[None]:
    """Write the CPU profile of the API server, from the beginning on, if there is a file for it."""
    if file is None:
        yield
        return

    def fetch(target: Path) -> None:
        with http(plane) as client:
            path = "/debug/pprof/profile"
            query = {"seconds": PROFILE_SECONDS}
            answer = client.get(path, params=query, timeout=2 * PROFILE_SECONDS)
            target.write_bytes(answer.raise_for_status().content)

    thread = threading.Thread(target=fetch, args=(file,))
    thread.start()
    yield
    thread.join()


def writes(plane: ControlPlane, since: Mark) -> list[Call]:
    """The operator's writes."""
    return [call for call in plane.audit.calls(since) if call.user_agent.startswith(AGENT) and call.verb in WRITES]


def written(plane: ControlPlane, since: Mark, resource: str) -> int:
    """Number of objects of a resource that the operator wrote."""
    calls = (call for call in writes(plane, since) if call.resource == resource)
    return len({call.name for call in calls if call.code in (httpx2.codes.OK, httpx2.codes.CREATED)})


def allocated_mib(client: httpx2.Client) -> float:
    """MiB that the API server has allocated so far, which other work on the machine does not change."""
    lines = client.get("/metrics").raise_for_status().text.splitlines()
    return float(next(line for line in lines if line.startswith("go_memstats_alloc_bytes_total ")).split()[1]) / 2**20


@dataclass(frozen=True)
class Idle:
    """What the API server takes in a second when nothing happens: CPU seconds, and MiB that it allocates."""

    cpu_s: float
    mib: float


class ServerUse:
    """CPU time and allocations of the API server from now on, without what it takes when nothing happens."""

    def __init__(self, plane: ControlPlane, client: httpx2.Client, idle: Idle) -> None:
        self._plane = plane
        self._client = client
        self._idle = idle
        self._mib = allocated_mib(client)
        self._cpu = server_seconds(plane)
        self._began = time.monotonic()

    def figures(self, jobs: int) -> dict[str, float]:
        """Milliseconds and MiB for each of the jobs."""
        cpu = server_seconds(self._plane) - self._cpu
        seconds = time.monotonic() - self._began
        mib = allocated_mib(self._client) - self._mib
        return {
            "server_cpu_ms": 1000 * (cpu - self._idle.cpu_s * seconds) / jobs,
            "server_mib": (mib - self._idle.mib * seconds) / jobs,
        }


def idle_use(plane: ControlPlane, client: httpx2.Client) -> Idle:
    """What the API server takes when nothing happens."""
    time.sleep(SETTLED)
    cpu = server_seconds(plane)
    mib = allocated_mib(client)
    time.sleep(IDLE)
    return Idle((server_seconds(plane) - cpu) / IDLE, (allocated_mib(client) - mib) / IDLE)


def create(
    plane: ControlPlane, client: httpx2.Client, running: RunningOperator, names: list[str], idle: Idle
) -> dict[str, float]:
    """Submit the jobs; figures until each has RayJob and status."""
    settled(running)
    mark = plane.audit.mark()
    cpu = processor_seconds(running)
    server = ServerUse(plane, client, idle)
    began = time.monotonic()
    submit(client, names)
    wait_for("the RayJobs", lambda: written(plane, mark, "rayjobs") == len(names), PATIENCE, pause=0.1)
    seconds = time.monotonic() - began
    # On a busy machine the operator may be idle while it waits for the API server.
    wait_for("the statuses", lambda: written(plane, mark, "diffusionrljobs/status") == len(names), PATIENCE)
    settled(running)
    calls = writes(plane, mark)
    return {
        "jobs_per_minute": 60 * len(names) / seconds,
        "operator_cpu_ms": 1000 * (processor_seconds(running) - cpu) / len(names),
        "writes": len(calls) / len(names),
        **server.figures(len(names)),
    }


def head_service(name: str, owner: dict[str, Any]) -> dict[str, Any]:
    """A headless Service of the job's head pod, which KubeRay makes anyway."""
    ports = [{"name": "dashboard", "port": 8265, "targetPort": 8265}]
    selector = {"diffusionrl.io/job": name, "ray.io/node-type": "head"}
    meta = {**owner, "name": f"{name}-head", "namespace": "default"}
    spec = {"clusterIP": "None", "selector": selector, "ports": ports}
    return {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": spec}


def apply_by_force(plane: ControlPlane, client: httpx2.Client, names: list[str], idle: Idle) -> dict[str, float]:
    """The API server's figures for a job whose objects are applied with force, from its submission on."""
    settings = plan.ClusterSettings(image="rollout:1")
    status = client.get(JOBS, params={"limit": "1"}).json()["items"][0]["status"]  # from a job of the operator
    server = ServerUse(plane, client, idle)
    submit(client, names)

    def apply(path: str, body: dict[str, Any]) -> None:
        query = {"fieldManager": "naive", "force": "true"}
        client.patch(path, content=json.dumps(body), headers=APPLY, params=query).raise_for_status()

    def one(name: str) -> None:
        job_body = client.get(f"{JOBS}/{name}").raise_for_status().json()
        job = DiffusionRLJob.model_validate({**job_body, "status": {}})
        identity = {name: job_body[name] for name in ("apiVersion", "kind")}
        meta = {"name": name, "namespace": "default"}
        apply(f"{JOBS}/{name}", {**identity, "metadata": {**meta, "finalizers": ["example.com/naive"]}})
        rendered = plan.render_objects(job, 1, settings)
        owner = {"name": name, "ownerReferences": rendered[0]["metadata"]["ownerReferences"]}
        config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {**meta, **owner}}
        text = {"job.yaml": json.dumps(job_body["spec"])}
        apply(f"/api/v1/namespaces/default/configmaps/{name}", {**config, "data": text})
        apply(f"/api/v1/namespaces/default/services/{name}-head", head_service(name, owner))
        for body in rendered:
            apply(kind_of(body).path("default", body["metadata"]["name"]), body)
        apply(f"{JOBS}/{name}/status", {**identity, "metadata": meta, "status": status})

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, names))
    time.sleep(SETTLED)
    return server.figures(len(names))


def turns(
    plane: ControlPlane, client: httpx2.Client, running: RunningOperator, jobs: int, repeats: int, profile: Path | None
) -> tuple[dict[str, Any], Idle]:
    """Figures of jobs that are created `repeats` times; a turn before is not counted."""
    creations: list[dict[str, float]] = []
    settled(running)
    idle = idle_use(plane, client)
    for turn in range(repeats + 1):
        names = [f"job-{turn}-{number}" for number in range(jobs)]
        with profiled(plane, profile if turn == repeats else None):
            creations.append(create(plane, client, running, names, idle))
        if turn < repeats:
            delete(client, names)
            wait_for("the deletion", lambda: not count(client, RAYJOBS), PATIENCE)
    figures = {
        key: value
        for name in creations[0]
        for key, value in spread(name, [turn[name] for turn in creations[1:]]).items()
    }
    return figures, idle


def submission(plane: ControlPlane, client: httpx2.Client, jobs: int, idle: Idle) -> dict[str, float]:
    """The API server's figures for a job that only its user writes."""
    server = ServerUse(plane, client, idle)
    submit(client, [f"alone-{number}" for number in range(jobs)])
    time.sleep(SETTLED)
    return {f"submission_{name.removeprefix('server_')}": value for name, value in server.figures(jobs).items()}


def measure(jobs: int, repeats: int, profile: Path | None) -> dict[str, Any]:
    """All figures of this operator, and of forced applies."""
    with empty_plane() as (plane, client, folder):
        with operator(plane, folder, **QUIET, CANARY_SECONDS="600") as running:
            creation, idle = turns(plane, client, running, jobs, repeats, profile)
        naive = apply_by_force(plane, client, [f"naive-{number}" for number in range(jobs)], idle)
        submissions = submission(plane, client, jobs, idle)
    return {
        "case": "creation of a job",
        **creation,
        **submissions,
        **{f"naive_{name}": value for name, value in naive.items()},
    }


def main() -> int:
    """Measure, write and print."""
    parser = arguments(__doc__, "operator_create", repeats=2)
    parser.add_argument("--jobs", type=int, default=300)
    parser.add_argument("--profile", type=Path, help="file for the CPU profile of the API server")
    chosen = parser.parse_args()
    figures = [measure(chosen.jobs, chosen.repeats, chosen.profile)]
    write(chosen.out, figures, jobs=chosen.jobs)
    page_tables.update(budgets_page.PAGE, budgets_page.TABLES, chosen.out)
    table(figures, ["case", "jobs_per_minute", "operator_cpu_ms", "writes", "server_cpu_ms", "server_mib"])
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
