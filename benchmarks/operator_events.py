"""CPU time of an event of a job in the operator's process: through kopf, and through the operator's informer.

    PYTHONPATH=.:operator python benchmarks/operator_events.py [--jobs 5000] [--profile FILE] [--out FILE]

A server in another process streams the same list of jobs to both, so no API server is needed. Each handler puts the job
into a cache, as the operator's does. The figures are the process's CPU time until the last job was handled.
"""

from __future__ import annotations

import asyncio
import cProfile
import json
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import budgets_page
import kopf
import page_tables
import yaml
from aiohttp import web
from operator_memory import copies, objects
from results import arguments, table, write

from omni_operator.cluster.cache.object_cache import ObjectCache
from omni_operator.cluster.credentials import Credentials, load_credentials
from omni_operator.cluster.kinds import JOBS
from omni_operator.cluster.watch.object_watch import ObjectWatch
from omni_operator.cluster.watch.watch_client import WatchClient
from omni_operator.handlers.jobs import configure_watches, new_kopf_settings, register_jobs
from omni_operator.handlers.kopf_login import register_login

END_OF_LIST = {"k8s.io/initial-events-end": "true"}
VERSION = {"groupVersion": JOBS.api_version, "version": JOBS.version}
NAMESPACES = {"name": "namespaces", "singularName": "", "kind": "Namespace", "namespaced": False, "verbs": ["list"]}
SERVED = {"name": JOBS.plural, "singularName": "", "kind": JOBS.kind, "namespaced": True, "verbs": ["list", "watch"]}
# What kopf asks for before it watches.
DISCOVERY: dict[str, dict[str, Any]] = {
    "/api": {"versions": ["v1"]},
    "/api/v1": {"resources": [NAMESPACES]},
    "/apis": {"groups": [{"name": JOBS.group, "versions": [VERSION], "preferredVersion": VERSION}]},
    f"/apis/{JOBS.api_version}": {"resources": [SERVED]},
}


def stream_of(jobs: int) -> bytes:
    """The events of a streamed list, as the API server sends them."""
    texts = [(kind, text) for kind, text in objects() if kind == JOBS]
    names = {"apiVersion": JOBS.api_version, "kind": JOBS.kind}
    events: list[dict[str, Any]] = [{"type": "ADDED", "object": body} for _, body in copies(texts, jobs)]
    metadata = {"resourceVersion": "1000000", "annotations": END_OF_LIST}
    events.append({"type": "BOOKMARK", "object": {**names, "metadata": metadata}})
    return b"".join(json.dumps(event).encode() + b"\n" for event in events)


def serve(jobs: int, ports: multiprocessing.Queue[int]) -> None:
    """Serve discovery and the watch of jobs."""
    events = stream_of(jobs)

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path in DISCOVERY:
            return web.json_response(DISCOVERY[request.path])
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(events)
        await asyncio.sleep(3600)
        return response

    async def run() -> None:
        app = web.Application()
        app.router.add_route("GET", "/{path:.*}", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        ports.put(int(runner.addresses[0][1]))
        await asyncio.sleep(3600)

    asyncio.run(run())


async def credentials_of(port: int, folder: Path) -> Credentials:
    """Credentials of the server on this port."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "local", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "anonymous", "user": {"token": "none"}}],
        "contexts": [{"name": "local", "context": {"cluster": "local", "user": "anonymous"}}],
        "current-context": "local",
    }
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return await load_credentials({"KUBECONFIG": str(path)})


class Counter:
    """Puts jobs into a cache until all have arrived."""

    def __init__(self, jobs: int) -> None:
        self.cache = ObjectCache()
        self.jobs = jobs
        self.handled = 0
        self.complete = asyncio.Event()

    def put(self, body: dict[str, Any]) -> None:
        """Handle a job."""
        self.cache.put(JOBS, body)
        self.handled += 1
        if self.handled == self.jobs:
            self.complete.set()


async def through_kopf(credentials: Credentials, jobs: int) -> None:
    """Let kopf deliver the jobs, with the operator's settings."""
    counter = Counter(jobs)
    registry = kopf.OperatorRegistry()
    settings = new_kopf_settings()
    configure_watches(settings, streams_lists=True)
    register_login(registry, credentials)
    register_jobs(registry, lambda change, body: counter.put(body))
    await kopf.operator(
        registry=registry, settings=settings, standalone=True, clusterwide=True, stop_flag=counter.complete
    )
    assert counter.complete.is_set(), "kopf ended before all jobs were handled"


async def through_informer(credentials: Credentials, jobs: int) -> None:
    """Let the operator's informer deliver the jobs."""
    counter = Counter(jobs)
    async with WatchClient(credentials, lambda *call: None, version="benchmark") as source:
        watch = ObjectWatch(
            source,
            JOBS,
            None,
            "",
            lambda kind, change, body: counter.put(body),
            lambda *listed: None,
            lambda: None,
        )
        running = asyncio.create_task(watch.run())
        await counter.complete.wait()
        running.cancel()


def measure_part(
    jobs: int,
    deliver: Callable[[Credentials, int], Coroutine[Any, Any, None]],
    credentials: Credentials,
    profile: Path | None,
    results: multiprocessing.Queue[dict[str, float]],
) -> None:
    """Send the CPU time of an event, and by how much memory grows for each job at its peak."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.process_time()
    profiler = cProfile.Profile()
    if profile:
        profiler.enable()
    asyncio.run(deliver(credentials, jobs))
    used = time.process_time() - began
    if profile:
        profiler.disable()
        profiler.dump_stats(profile)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    results.put({"cpu_ms": used * 1000 / jobs, "peak_kib": grown / jobs})


def measure(jobs: int, profile: Path | None) -> dict[str, float]:
    """All figures."""
    ports: multiprocessing.Queue[int] = multiprocessing.Queue()
    server = multiprocessing.Process(target=serve, args=(jobs, ports), daemon=True)
    server.start()
    figures = {"jobs": float(jobs)}
    try:
        with tempfile.TemporaryDirectory() as folder:
            credentials = asyncio.run(credentials_of(ports.get(), Path(folder)))
            for name, deliver in (("informer", through_informer), ("kopf", through_kopf)):
                results: multiprocessing.Queue[dict[str, float]] = multiprocessing.Queue()
                part = multiprocessing.Process(
                    target=measure_part,
                    args=(jobs, deliver, credentials, profile if name == "kopf" else None, results),
                    daemon=True,
                )
                part.start()
                figures |= {f"{name}_{figure}": value for figure, value in results.get(timeout=300).items()}
                part.join()
    finally:
        server.kill()
        server.join()
    return figures


def main() -> None:
    """Measure, print and write the figures."""
    parser = arguments(__doc__, "operator_events", 3)
    parser.add_argument("--jobs", type=int, default=5000)
    parser.add_argument("--profile", type=Path, help="file for cProfile's statistics of kopf's part")
    chosen = parser.parse_args()
    runs = [measure(chosen.jobs, chosen.profile) for _ in range(chosen.repeats)]
    table([{"figure": name, "value": value} for name, value in runs[0].items()], ["figure", "value"])
    write(chosen.out, runs)
    page_tables.update(budgets_page.PAGE, budgets_page.TABLES, chosen.out)


if __name__ == "__main__":
    main()
