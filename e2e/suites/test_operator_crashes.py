"""An operator that dies, or gets no answer, at every write of a job's life on a real API server.

The life: created, runs, loses its head, second attempt, suspended, resumed, fails for good, deleted. One job lives it
without a fault. Others live the same at the same time, each with a fault at its first, second, ... write of every step
of the life, so that together every write has every fault; all must end alike. Events are written once or not at all.
The operator is a reconciler in this process. A crash drops all its memory; the next one starts from lists.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from e2e.cluster import deadlines
from e2e.cluster.api import Api
from e2e.cluster.control_plane import ControlPlane
from e2e.faulty_cluster import Fault, FaultyCluster, Killed
from e2e.jobs import JobOnPlane, condition
from omni_operator.api.names import SELECTOR
from omni_operator.cluster.cache.object_cache import ObjectCache
from omni_operator.cluster.client import ApiServer
from omni_operator.cluster.credentials import load_credentials
from omni_operator.cluster.errors import Unavailable
from omni_operator.cluster.kinds import JOBS, NETWORK_POLICIES, RAYCLUSTERS, RAYJOBS, Body, Kind
from omni_operator.cluster.protocol import Cluster
from omni_operator.plan import ClusterSettings
from omni_operator.reconcile.reconciler import Reconciler
from omni_operator.reports.endpoint import ReportStore
from omni_operator.status.decisions.timeouts import Timeouts

pytestmark = pytest.mark.cluster
KINDS = (RAYJOBS, RAYCLUSTERS, NETWORK_POLICIES, JOBS)
ALL_DONE = 120.0
PASSES = 20
Snapshot = dict[Kind, list[Body]]


class Life:
    """A job, and the operator processes that it sees one after the other.

    Attributes:
        at: number of the write that the fault happens to, in each step of the life.
        steps: writes of each step, without Events and the name of the job.
        happened: writes that the fault happened to.
        uids: every uid of every RayJob, by its name.
    """

    def __init__(self, server: Cluster, job: JobOnPlane, fault: Fault | None, at: int) -> None:
        self.job = job
        self.fault = fault
        self.at = at
        self.wire = FaultyCluster(server, fault=self._fault)
        self.steps: list[list[str]] = []
        self.happened: list[str] = []
        self.uids: dict[str, set[str]] = {}
        self.killed = 0
        self.start()

    def _fault(self, write: str) -> Fault | None:
        if "Event/" in write:
            return None
        write = write.replace(self.job.name, "")
        self.steps[-1].append(write)
        if len(self.steps[-1]) != self.at + 1:
            return None
        self.happened.append(write)
        return self.fault

    def start(self) -> None:
        """A new operator process."""
        self._cache = ObjectCache()
        self._reconciler = Reconciler(
            cluster=cast(Cluster, self.wire),
            cache=self._cache,
            reports=ReportStore(),
            settings=ClusterSettings(image="rollout:1"),
            clock=lambda: datetime.now(UTC),
            instance="e2e",
            timeouts=Timeouts(retry=timedelta(), head=timedelta()),
        )

    def observe(self, snapshot: Snapshot) -> None:
        """The watches deliver everything up to now."""
        rayjobs = []
        for kind in KINDS:
            mine = [body for body in snapshot[kind] if _job_of(kind, body) == self.job.name]
            rayjobs += mine if kind == RAYJOBS else []
            for body in mine:
                self._cache.put(kind, body)
            self._cache.remove_missing(kind, {body["metadata"]["uid"] for body in mine}, 2**62)
        assert len(rayjobs) <= 1, f"two attempts at once: {[body['metadata']['name'] for body in rayjobs]}"
        for body in rayjobs:
            self.uids.setdefault(body["metadata"]["name"], set()).add(body["metadata"]["uid"])

    async def passes(self, snapshot: Snapshot) -> None:
        """All passes that are due."""
        self.observe(snapshot)
        for _ in range(PASSES):
            try:
                result = await self._reconciler.reconcile((self.job.namespace, self.job.name))
            except Killed:
                self.killed += 1
                self.start()
                return
            except Unavailable:
                return
            if result.gone or result.wake is None or result.wake > datetime.now(UTC):
                return
        raise AssertionError(f"{self}: passes are still due: {self.wire.writes[-8:]}")

    def __str__(self) -> str:
        return f"{self.job.name} ({self.fault and self.fault.value} {self.at})"


def _job_of(kind: Kind, body: Body) -> str:
    meta = body["metadata"]
    return str(meta["name"] if kind == JOBS else meta["labels"]["diffusionrl.io/job"])


class World:
    """Jobs of a namespace and their operators, in lockstep: everyone acts, then every operator makes its passes."""

    def __init__(self, server: ApiServer, api: Api, namespace: str) -> None:
        self.server = server
        self.api = api
        self.namespace = namespace

    def life(self, name: str, fault: Fault | None = None, at: int = -1) -> Life:
        return Life(self.server, JobOnPlane(self.api, self.namespace, name, {"backoffLimit": 1}), fault, at)

    def snapshot(self) -> Snapshot:
        """Everything that the watches have delivered by now."""
        objects: Snapshot = {}
        for kind in KINDS:
            path = kind.path(self.namespace)
            selector = "" if kind == JOBS else SELECTOR
            objects[kind] = [
                {"apiVersion": kind.api_version, "kind": kind.kind, **body}
                for body in self.api.get(path, labelSelector=selector)["items"]
            ]
        return objects

    async def until(self, lives: list[Life], good: Callable[[Life, Body | None, Snapshot], bool]) -> None:
        """Passes until it is good for all jobs, and then once more."""
        missing = list(lives)
        done = False
        begun = asyncio.get_running_loop().time()
        while not done:
            done = not missing
            assert asyncio.get_running_loop().time() < begun + ALL_DONE, [str(life) for life in missing]
            snapshot = self.snapshot()
            async with asyncio.TaskGroup() as group:
                for life in lives:
                    group.create_task(life.passes(snapshot))
            snapshot = self.snapshot()
            jobs = {body["metadata"]["name"]: body for body in snapshot[JOBS]}
            missing = [life for life in lives if not good(life, jobs.get(life.job.name), snapshot)]

    async def live(self, lives: list[Life]) -> dict[str, dict[str, Any]]:
        """The whole life; the statuses before the deletion."""

        def attempt(number: int) -> Callable[[Life, Body | None, Snapshot], bool]:
            def there(life: Life, job: Body | None, snapshot: Snapshot) -> bool:
                names = {body["metadata"]["name"] for body in snapshot[RAYJOBS]}
                return _status(job).get("attempts") == number and life.job.attempt(number) in names

            return there

        def says(kind: str) -> Callable[[Life, Body | None, Snapshot], bool]:
            return lambda life, job, snapshot: condition(_status(job), kind).get("status") == "True"

        steps: list[tuple[Callable[[JobOnPlane], object], Callable[[Life, Body | None, Snapshot], bool]]] = [
            (lambda job: job.submit(), attempt(1)),
            (lambda job: job.run(1), says("Ready")),
            (lambda job: job.head(1, "False", "HeadPodNotFound"), attempt(2)),
            (lambda job: job.run(2), says("Ready")),
            (lambda job: self.api.patch(job.own_path, {"spec": {"suspend": True}}), says("Suspended")),
            (lambda job: self.api.patch(job.own_path, {"spec": {"suspend": False}}), attempt(3)),
            (lambda job: job.run(3), says("Ready")),
            (lambda job: job.end(3, "FAILED", "exit code 1"), says("Failed")),
        ]
        for act, good in steps:
            for life in lives:
                life.steps.append([])
                act(life.job)
            await self.until(lives, good)
        ends = {body["metadata"]["name"]: body["status"] for body in self.snapshot()[JOBS]}
        for life in lives:
            life.steps.append([])
            self.api.delete(life.job.own_path)
        await self.until(lives, lambda life, job, snapshot: job is None)
        return ends

    def left(self) -> list[str]:
        """Objects of jobs that still exist."""
        return [
            f"{kind.plural}/{body['metadata']['name']}"
            for kind in KINDS
            for body in self.api.get(kind.path(self.namespace), labelSelector=SELECTOR)["items"]
        ]


def _status(job: Body | None) -> dict[str, Any]:
    return (job or {}).get("status") or {}


def outcome(status: dict[str, Any]) -> dict[str, Any]:
    """What does not depend on the time."""
    return {
        "conditions": [(item["type"], item["status"], item["reason"]) for item in status["conditions"]],
        "failures": [(item["attempt"], item["reason"], item["counted"]) for item in status.get("failures", ())],
        **{name: status.get(name) for name in ("attempts", "failuresCounted", "observedGeneration", "rollout")},
    }


@asynccontextmanager
async def connected(plane: ControlPlane) -> AsyncIterator[ApiServer]:
    credentials = await load_credentials({"KUBECONFIG": str(plane.kubeconfig)}, Path("/nonexistent"))
    async with ApiServer(credentials, lambda *called: None, version="crashes") as server:
        yield server


async def test_a_fault_at_any_write_changes_nothing_in_the_end(
    installed: ControlPlane, api: Api, namespace: str
) -> None:
    async with connected(installed) as server:
        world = World(server, api, namespace)
        first = world.life("first")
        expected = outcome((await world.live([first]))["first"])
        assert (expected["attempts"], expected["failuresCounted"]) == (3, 2)
        writes = [write for step in first.steps for write in step]
        created = {write.partition(" ")[2] for write in writes if not write.startswith("delete ")}
        assert {f"RayJob/-a0{number}" for number in (1, 2, 3)} <= created
        assert {"delete RayJob/-a01", "delete RayJob/-a02"} <= set(writes)
        most = max(len(step) for step in first.steps)
        lives = [
            world.life(f"{name}-{at}", fault, at)
            for name, fault in (("killed", Fault.KILLED_AFTER), ("lost", Fault.ANSWER_LOST))
            for at in range(most)
        ]
        ends = await world.live(lives)
        for fault in {life.fault for life in lives}:
            missed = set(writes) - {write for life in lives if life.fault is fault for write in life.happened}
            assert not missed, f"{fault}: happened to no {missed}"
        for life in lives:
            assert life.killed == (len(life.happened) if life.fault is Fault.KILLED_AFTER else 0), life
            assert outcome(ends[life.job.name]) == expected, life
            assert {name: len(uids) for name, uids in life.uids.items()} == {
                life.job.attempt(number): 1 for number in (1, 2, 3)
            }, life
        deadlines.wait_until("everything to be gone", ALL_DONE, lambda: not world.left())
