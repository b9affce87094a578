"""Simulation for reconciler tests: in-memory API server, scripted KubeRay and kubelets, and a clock."""

import copy
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from control.operator_core.pools import KEY, Pools, Queue
from e2e.fake_cluster import FakeCluster
from e2e.faulty_cluster import Fault, FaultyCluster, Killed
from omni_operator.api.names import JOB_LABEL
from omni_operator.api.status import Condition, Status
from omni_operator.cluster.cache.object_cache import ObjectCache
from omni_operator.cluster.errors import ClusterError, Unavailable
from omni_operator.cluster.kinds import JOBS, NETWORK_POLICIES, PODS, RAYCLUSTERS, RAYJOBS, Body, Key, Kind
from omni_operator.plan import ClusterSettings
from omni_operator.reconcile.reconciler import Reconciler
from omni_operator.reports.endpoint import ReportStore
from omni_operator.status.decisions.timeouts import Timeouts
from omni_operator.status.observed.timestamps import format_timestamp
from omni_operator.status.observed.trainer_report import parse_event
from omni_operator.status.reasons.table import REASONS, reasons_shown

START = datetime(2026, 1, 1, tzinfo=UTC)
SPEC: dict[str, Any] = {
    "model": {"base": "shapes-sd3"},
    "data": {"train": ["prompts.jsonl"]},
    "reward": {"scorers": [{"name": "color"}]},
    "trainer": {"totalSteps": 10, "accelerator": {"vendor": "NVIDIA", "count": 2}},
    "rollout": {"replicas": 2},
    "checkpoint": {"claimName": "ckpt"},
}


def is_selected(kind: Kind, body: Body) -> bool:
    """Whether a watch delivers an object: of other kinds than jobs only those with the operator's label."""
    return kind == JOBS or JOB_LABEL in (body["metadata"].get("labels") or {})


class Simulation:
    """The simulated cluster; its methods are the actions of users, KubeRay, kubelets and the clock.

    Attributes:
        skew: difference of the operator's clock to all others.
        frozen: kinds whose watch delivers nothing.
        fault: of the operator's requests, see `FaultyCluster`.
        written: called with the objects that the operator has written, see `Reconciler`.
        foreign_reasons: reasons that others than the operator write into statuses.
    """

    def __init__(self) -> None:
        self.now = START
        self.skew = timedelta()
        self.cluster = FakeCluster(lambda: self.now)
        self.passes = 0
        self.foreign_reasons: set[str] = set()
        self.fault: Callable[[str], Fault | None] = lambda write: None
        self.written: Callable[[Kind, Body], None] = lambda kind, body: None
        self.start_operator()

    # The operator's process.

    def _fault(self, write: str) -> Fault | None:
        return self.fault(write)

    def _written(self, kind: Kind, body: Body) -> None:
        self.written(kind, body)

    def start_operator(self) -> None:
        """Start a new operator process with a cache from the first lists."""
        self.cache = ObjectCache()
        self.reports = ReportStore()
        self.requests = FaultyCluster(self.cluster, fault=self._fault)
        self.reconciler = Reconciler(
            cluster=self.requests,
            cache=self.cache,
            reports=self.reports,
            settings=ClusterSettings(image="rollout:1"),
            clock=lambda: self.now + self.skew,
            instance="test",
            timeouts=Timeouts(),
            written=self._written,
        )
        self.wakes: dict[Key, datetime] = {}
        self.frozen: set[Kind] = set()
        self._unanswered = 0
        self._shown: set[str] = set()  # uids of the objects that the watches have delivered
        for kind in (JOBS, RAYJOBS, RAYCLUSTERS, PODS, NETWORK_POLICIES):
            for body in self.cluster.all(kind):
                if is_selected(kind, body):
                    self._shown.add(str(body["metadata"]["uid"]))
                    if key := self.cache.put(kind, body):
                        self.wakes[key] = self.now
        self._seen = len(self.cluster.events)
        self._held = []

    def watch(self) -> None:
        """Deliver pending watch events."""
        pending: list[tuple[str, Kind, Body]] = [*self._held, *self.cluster.events[self._seen :]]
        self._seen = len(self.cluster.events)
        self._held = [event for event in pending if event[1] in self.frozen]
        for kind_of_event, kind, body in pending:
            if kind in self.frozen:
                continue
            selected = is_selected(kind, body)
            uid = str(body["metadata"].get("uid"))
            if selected and kind_of_event != "DELETED":
                self._shown.add(uid)
                key = self.cache.put(kind, body)
            elif uid in self._shown:  # deleted, or without the labels that a watch asks for
                self._shown.discard(uid)
                key = self.cache.remove(kind, body)
            else:
                continue
            if key:
                self.wakes[key] = self.now

    async def settle(self, limit: int = 40) -> int:
        """Make passes until none is due; return their number.

        Raises:
            AssertionError: passes are still due after `limit` rounds.
        """
        for count in range(limit):
            self.cluster.collect()
            self.watch()
            due = [key for key, at in self.wakes.items() if at <= self.now]
            if not due:
                return count
            for key in due:
                try:
                    await self.reconcile(key)
                except Unavailable:  # the job's worker waits, longer each time
                    self._unanswered += 1
                    self.wakes[key] = self.now + timedelta(seconds=min(2**self._unanswered, 300))
                except Killed:
                    self.start_operator()
        raise AssertionError(f"passes are still due after {limit} rounds: {self.cluster.log[-10:]}")

    async def reconcile(self, key: Key = KEY) -> None:
        """Make one pass.

        Raises:
            AssertionError: another one is due at once, although this one wrote no status; or it changed what the cache
                has, which other passes and threads read.
        """
        self.wakes.pop(key, None)
        now = self.reconciler.clock()
        before = self.cluster.get(JOBS, *key)
        cached = [self.cache.job(key), self.cache.shared(key, NETWORK_POLICIES, key[1])]
        unchanged = copy.deepcopy(cached)
        result = await self.reconciler.reconcile(key)
        assert cached == unchanged, "a pass changed a cached object"
        if result.wake and result.wake <= now:
            assert (before or {}).get("status") != (self.cluster.get(JOBS, *key) or {}).get("status"), "a hot loop"
        self.passes += 1
        self._unanswered = 0
        if result.wake:
            self.wakes[key] = result.wake - self.skew

    async def after(self, seconds: float) -> None:
        """Advance the clock, with the passes that become due."""
        end = self.now + timedelta(seconds=seconds)
        await self.settle()
        while due := [at for at in self.wakes.values() if at <= end]:
            self.now = max(self.now, min(due))
            await self.settle()
        self.now = end
        await self.settle()

    async def requests_in(self, seconds: float) -> Counter[tuple[str, str]]:
        """Advance the clock; return the operator's requests meanwhile, by verb and resource."""
        self.cluster.log.clear()
        await self.after(seconds)
        return self.cluster.counts()

    # Users.

    def submit(self, key: Key = KEY, **spec: Any) -> None:
        body = {"apiVersion": JOBS.api_version, "kind": JOBS.kind, "metadata": {"namespace": key[0], "name": key[1]}}
        self.cluster.make({**body, "spec": {**copy.deepcopy(SPEC), **spec}})

    async def submit_and_settle(self, **spec: Any) -> None:
        self.submit(**spec)
        await self.settle()

    def submit_and_watch(self) -> None:
        self.submit()
        self.watch()

    def edit(self, **spec: Any) -> None:
        self.cluster.change(JOBS, *KEY, spec=spec)

    async def edit_and_settle(self, **spec: Any) -> None:
        self.edit(**spec)
        await self.settle()

    # The API server.

    def refuse(self, error: ClusterError, kind: Kind, verb: str | None = None) -> None:
        """Answer requests for a kind with this error: requests with one verb, or all."""
        self.cluster.failures = lambda asked, of, name: error if of == kind and verb in (None, asked) else None

    def allow(self) -> None:
        """Refuse no request any more."""
        self.cluster.failures = lambda verb, kind, name: None

    def alter(self, change: Callable[[Body], object], kind: Kind = RAYJOBS) -> None:
        """Let a webhook alter what is created and changed of a kind, until `_store` is deleted."""
        store = self.cluster._store

        def altered(found: Kind, body: Body) -> Body:
            if found == kind:
                body = {**body, "metadata": {**body["metadata"]}}
                change(body)
            return store(found, body)

        self.cluster._store = altered

    # KubeRay and kubelets.

    def change(self, kind: Kind, attempt: int = 1, **parts: Any) -> None:
        """Change the RayJob or the RayCluster of an attempt."""
        name = f"red-a{attempt:02d}" if kind == RAYJOBS else f"red-a{attempt:02d}-x1"
        self.cluster.change(kind, KEY[0], name, **parts)

    def start(self, attempt: int) -> None:
        """KubeRay creates the cluster of an attempt, and its pods start."""
        name = f"red-a{attempt:02d}-x1"
        self.change(RAYJOBS, attempt, status={"jobDeploymentStatus": "Initializing", "rayClusterName": name})
        if self.cluster.get(RAYCLUSTERS, KEY[0], name):
            return
        rayjob = self.cluster.get(RAYJOBS, KEY[0], f"red-a{attempt:02d}")
        raycluster = self.cluster.make_owned(RAYCLUSTERS, name, rayjob)
        for role in ("head", "worker"):
            labels = {"ray.io/node-type": role, "ray.io/group": role}
            self.cluster.make_owned(PODS, f"{name}-{role}", raycluster, labels, status={"phase": "Pending"})

    def run(self, attempt: int) -> None:
        """Pods are ready and Ray runs the job."""
        self.start(attempt)
        self.head(attempt, True, "HeadPodRunningAndReady")
        self.change(RAYCLUSTERS, attempt, status={"desiredWorkerReplicas": 1, "readyWorkerReplicas": 1})
        for role in ("head", "worker"):
            self.pod(attempt, role, {"phase": "Running"})
        status = {"jobDeploymentStatus": "Running", "jobStatus": "RUNNING", "startTime": format_timestamp(self.now)}
        self.change(RAYJOBS, attempt, status=status)

    async def run_and_settle(self, attempt: int) -> None:
        self.run(attempt)
        await self.settle()

    async def submit_starting(self, **spec: Any) -> None:
        """A new job; KubeRay has created the cluster of its first attempt since the last pass."""
        await self.submit_and_settle(**spec)
        self.start(1)

    async def submit_running(self, **spec: Any) -> None:
        """A new job whose first attempt runs."""
        await self.submit_and_settle(**spec)
        await self.run_and_settle(1)

    def head(self, attempt: int, ready: bool, reason: str) -> None:
        """KubeRay updates the head's condition; `state` stays `ready`, as in KubeRay."""
        head = {"type": "HeadPodReady", "status": str(ready), "reason": reason}
        conditions = [
            {**head, "lastTransitionTime": format_timestamp(self.now)},
            {"type": "RayClusterProvisioned", "status": "True", "reason": "AllPodRunningAndReadyFirstTime"},
        ]
        self.change(RAYCLUSTERS, attempt, status={"state": "ready", "conditions": conditions})

    def pod(self, attempt: int, role: str, status: dict[str, Any]) -> None:
        """A kubelet updates a pod's status."""
        self.cluster.change(PODS, KEY[0], f"red-a{attempt:02d}-x1-{role}", status=status)

    async def pod_and_settle(self, attempt: int, role: str, status: dict[str, Any]) -> None:
        self.pod(attempt, role, status)
        await self.settle()

    def lose_head(self, attempt: int) -> None:
        """The head pod is deleted; KubeRay does not recreate it and does not update the RayJob."""
        self.cluster.remove(PODS, KEY[0], f"red-a{attempt:02d}-x1-head")
        self.head(attempt, False, "HeadPodNotFound")

    def end(self, attempt: int, job: str = "SUCCEEDED", reason: str = "", message: str = "") -> None:
        """KubeRay records the end of the Ray job and deletes its cluster."""
        deployment = "Complete" if job in ("SUCCEEDED", "STOPPED") else "Failed"
        status = {"jobDeploymentStatus": deployment, "jobStatus": job, "reason": reason, "message": message}
        self.change(RAYJOBS, attempt, status={**status, "endTime": format_timestamp(self.now)})
        self.cluster.remove(RAYCLUSTERS, KEY[0], f"red-a{attempt:02d}-x1")

    async def end_and_settle(self, attempt: int, *result: str) -> None:
        self.end(attempt, *result)
        await self.settle()

    # The trainer.

    def report(self, event: str = "step", attempt: int = 1, **fields: Any) -> dict[str, Any]:
        """The trainer posts a report; return the answer."""
        job = self.cluster.get(JOBS, *KEY)
        parsed = parse_event(json.dumps({"event": event, **fields}).encode())
        self.wakes[KEY] = self.now
        return self.reports.take(KEY, job["metadata"]["uid"], attempt, parsed, self.now)

    async def report_and_settle(self, event: str = "step", **fields: Any) -> None:
        self.report(event, **fields)
        await self.settle()

    # The state.

    def status(self) -> Status:
        body = self.cluster.get(JOBS, *KEY)
        return Status.model_validate(body.get("status") or {})

    def condition(self, kind: str) -> Condition:
        condition = self.status().condition(kind)
        assert condition is not None, kind
        return condition

    def verdict(self, kind: str) -> tuple[str, str]:
        """Status and reason of a condition."""
        condition = self.condition(kind)
        return condition.status, condition.reason

    def attempts(self) -> list[str]:
        return [body["metadata"]["name"] for body in self.cluster.all(RAYJOBS)]

    def event_reasons(self) -> list[str]:
        """Reasons of the Kubernetes Events."""
        return [body["reason"] for body in self.events()]

    def events(self) -> list[dict[str, Any]]:
        """The Kubernetes Events."""
        return [body for _, kind, body in self.cluster.events if kind.plural == "events"]


def unexplained_reasons(history: Iterable[tuple[str, Kind, Body]]) -> set[tuple[str, str]]:
    """Reasons in statuses and events that the table of reasons does not have, or not in that place."""
    shown: set[tuple[str, str]] = set()
    for _, kind, body in history:
        if kind.plural == "events":
            shown.add((body["reason"], "event"))
        elif kind == JOBS:
            status = Status.model_validate(body.get("status") or {})
            shown |= {(failure.reason, "failure") for failure in status.failures}
            shown |= {(warning.reason, "warning") for warning in status.warnings}
            shown |= {(value.reason, f"{value.type}={value.status}") for value in status.conditions}
    return {(reason, shown_in) for reason, shown_in in shown if not _is_explained(reason, shown_in)}


def _is_explained(reason: str, place: str) -> bool:
    if place in ("AcceleratorChosen=True", "ReconcileError=True"):  # the vendor; the type of the error
        return True
    if place.endswith("=Unknown") or reason in reasons_shown("failure"):  # of the condition that decides it
        return reason in REASONS
    return reason in reasons_shown(place)


@pytest.fixture
def simulation() -> Iterator[Simulation]:
    """A simulation; after the test, every reason that the operator wrote is in the table of reasons."""
    simulation = Simulation()
    yield simulation
    written = unexplained_reasons(simulation.cluster.events)
    assert {reason for reason, _ in written} <= simulation.foreign_reasons, written


@pytest.fixture
def pools(simulation: Simulation) -> Pools:
    """A job with rollout pods of their own."""
    return Pools(simulation)


@pytest.fixture
def queue(simulation: Simulation) -> Queue:
    """A job in a Kueue queue."""
    return Queue(simulation)


@pytest.fixture
def new_simulation() -> type[Simulation]:
    """For tests with several simulations."""
    return Simulation
