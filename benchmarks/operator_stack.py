"""A control plane with an operator process, for benchmarks: load, arrival of children, figures of the process."""

import json
import os
import ssl
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import httpx2
from job_spec import SPEC

from e2e.cluster import pki
from e2e.cluster.control_plane import ControlPlane, control_plane
from e2e.operator_process import RunningOperator, install

JOBS = "/apis/diffusionrl.io/v1alpha1/namespaces/default/diffusionrljobs"
RAYJOBS = "/apis/ray.io/v1/namespaces/default/rayjobs"
RAYJOB_OF = "diffusionrl.io/job"
TICKS = os.sysconf("SC_CLK_TCK")
# Settings of an operator without periodic work.
QUIET: dict[str, Any] = {"RESYNC_SECONDS": "86400", "PRUNE_SECONDS": "86400"}


@contextmanager
def empty_plane() -> Iterator[tuple[ControlPlane, httpx2.Client, Path]]:
    """A control plane without jobs, with the custom resources; an administrator's client; a folder."""
    with tempfile.TemporaryDirectory() as folder, control_plane({}) as plane, http(plane) as client:
        install(plane)
        yield plane, client, Path(folder)


@contextmanager
def http(plane: ControlPlane) -> Iterator[httpx2.Client]:
    """An administrator's HTTP client; threads may share it."""
    certificate, key = plane.authority.issue(pki.ADMIN)
    context = ssl.create_default_context(cafile=str(plane.authority.certificate))
    context.load_cert_chain(certificate, key)
    with httpx2.Client(base_url=plane.layout.server, verify=context, timeout=60, trust_env=False) as client:
        yield client


def submit(client: httpx2.Client, names: Iterable[str], spec: dict[str, Any] | None = None, path: str = JOBS) -> None:
    """Create jobs, eight at a time."""

    def create(name: str) -> None:
        body = {"apiVersion": "diffusionrl.io/v1alpha1", "kind": "DiffusionRLJob", "metadata": {"name": name}}
        client.post(path, json={**body, "spec": spec or SPEC}).raise_for_status()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(create, names))


def delete(client: httpx2.Client, names: Iterable[str]) -> None:
    """Request the deletion of jobs, eight at a time."""
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: client.delete(f"{JOBS}/{name}").raise_for_status(), names))


def names(client: httpx2.Client) -> list[str]:
    """Names of all jobs."""
    names_read: list[str] = []
    following = ""
    while True:
        page = client.get(JOBS, params={"limit": "500", "continue": following}).raise_for_status().json()
        names_read += [item["metadata"]["name"] for item in page["items"]]
        following = page["metadata"].get("continue", "")
        if not following:
            return names_read


def count(client: httpx2.Client, path: str) -> int:
    """Number of objects."""
    page = client.get(path, params={"limit": "1"}).raise_for_status().json()
    return len(page["items"]) + int(page["metadata"].get("remainingItemCount") or 0)


def wait_for(what: str, done: Any, seconds: float, pause: float = 0.2) -> float:
    """Seconds until `done()`.

    Raises:
        TimeoutError: it takes longer than `seconds`.
    """
    began = time.monotonic()
    while not done():
        if time.monotonic() - began > seconds:
            raise TimeoutError(f"{what}: not within {seconds:.0f} s")
        time.sleep(pause)
    return time.monotonic() - began


@dataclass
class Arrivals:
    """Times at which RayJobs were created, by job; a watch in a thread records them."""

    plane: ControlPlane
    at: dict[str, float] = field(default_factory=dict)
    _end: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def recorded(self) -> Iterator[Self]:
        with http(self.plane) as client:
            version = client.get(RAYJOBS, params={"limit": "1"}).json()["metadata"]["resourceVersion"]
            thread = threading.Thread(target=self._record, args=(client, version))
            thread.start()
            try:
                yield self
            finally:
                self._end.set()
                thread.join()  # before its client is closed

    def _record(self, client: httpx2.Client, version: str) -> None:
        headers = {"Accept": "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"}
        while not self._end.is_set():
            parameters = {"watch": "1", "resourceVersion": version, "timeoutSeconds": "2"}
            with client.stream("GET", RAYJOBS, params=parameters, headers=headers) as answer:
                for line in answer.iter_lines():
                    event = json.loads(line)
                    meta = event["object"]["metadata"]
                    version = meta["resourceVersion"]
                    if event["type"] == "ADDED":
                        self.at.setdefault(meta["labels"][RAYJOB_OF], time.monotonic())


def resident(running: RunningOperator) -> float:
    """Resident memory of the operator in MiB."""
    status = Path(f"/proc/{running.process.pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) / 1024


def processor_seconds(running: RunningOperator) -> float:
    """CPU time of the operator so far."""
    return _processor_seconds(running.process.pid)


def server_seconds(plane: ControlPlane) -> float:
    """CPU time of the API server so far."""
    return _processor_seconds(
        next(daemon.pid for daemon in plane.daemons.recorded() if daemon.name == "kube-apiserver")
    )


def _processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def settled(running: RunningOperator, quiet: float = 0.05, within: float = 600.0) -> None:
    """Wait until the operator uses less than `quiet` of a CPU core for two seconds."""
    before = processor_seconds(running)

    def idle() -> bool:
        nonlocal before
        time.sleep(2.0)
        now = processor_seconds(running)
        before, used = now, now - before
        return used < quiet * 2.0

    wait_for("the operator to be idle", idle, within, pause=0.0)
