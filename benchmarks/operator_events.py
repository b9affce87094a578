"""CPU time of an event of a job in the operator's process: through kopf, and through the operator's informer.

    PYTHONPATH=.:operator python benchmarks/operator_events.py [--jobs 5000] [--profile FILE] [--out FILE]

A server in another process streams the same list of jobs to both, so no API server is needed. Each handler puts the job
into a cache, as the operator's does. The figures are the process's CPU time until the last job was handled.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kopf
import yaml
from aiohttp import web
from operator_memory import copies, objects
from results import FIGURES, table, write

from omni_operator.cluster.cache.object_cache import ObjectCache
from omni_operator.cluster.credentials import Credentials, load_credentials
from omni_operator.cluster.kinds import JOBS
from omni_operator.cluster.watch.object_watch import ObjectWatch
from omni_operator.cluster.watch.watch_client import WatchClient
from omni_operator.handlers.jobs import configure_watches, register_jobs
from omni_operator.handlers.process import register_login

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
        "users": [{"name": "nobody", "user": {"token": "none"}}],
        "contexts": [{"name": "local", "context": {"cluster": "local", "user": "nobody"}}],
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
    settings = kopf.OperatorSettings()
    settings.scanning.disabled = True
    settings.posting.enabled = False
    configure_watches(settings, streams_lists=True)
    register_login(registry, credentials)
    register_jobs(registry, lambda change, body: counter.put(body))
    running = asyncio.create_task(
        kopf.operator(
            registry=registry, settings=settings, standalone=True, clusterwide=True, stop_flag=counter.complete
        )
    )
    await running
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


def measure(
    jobs: int, deliver: Callable[[Credentials, int], Any], credentials: Credentials, profile: Path | None
) -> dict[str, float]:
    """CPU time of an event, and the growth of the process's memory at its peak."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    began = time.process_time()
    profiler = cProfile.Profile()
    if profile:
        profiler.enable()
    asyncio.run(deliver(credentials, jobs))
    used = time.process_time() - began
    if profile:
        profiler.disable()
        profiler.dump_stats(profile)
    after = resource.getrusage(resource.RUSAGE_SELF)
    return {"cpu_ms": used * 1000 / jobs, "peak_mib": (after.ru_maxrss - before.ru_maxrss) / 1024}


def main() -> None:
    """Measure, print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=5000)
    parser.add_argument("--profile", type=Path, help="file for cProfile's statistics of kopf's part")
    parser.add_argument("--out", type=Path, default=FIGURES / "operator_events.json")
    given = parser.parse_args()
    ports: multiprocessing.Queue[int] = multiprocessing.Queue()
    server = multiprocessing.Process(target=serve, args=(given.jobs, ports), daemon=True)
    server.start()
    try:
        with tempfile.TemporaryDirectory() as folder:
            credentials = asyncio.run(credentials_of(ports.get(), Path(folder)))
            informer = measure(given.jobs, through_informer, credentials, None)
            through = measure(given.jobs, through_kopf, credentials, given.profile)
    finally:
        server.kill()
        server.join()
    found = {
        "jobs": given.jobs,
        **{f"informer_{name}": value for name, value in informer.items()},
        **{f"kopf_{name}": value for name, value in through.items()},
    }
    table([{"figure": name, "value": value} for name, value in found.items()], ["figure", "value"])
    write(given.out, [found])


if __name__ == "__main__":
    main()
