"""Random histories: from any state that users, KubeRay, kubelets and crashes cause, the operator converges.

At the fixed point: at most one attempt, nothing without an owner, nothing running that should not be, and no write.
"""

import asyncio
import os
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from control.operator_core.pools import KEY
from e2e.faulty_cluster import OF_THE_JOB, Fault
from omni_operator.api.names import JOB_LABEL, SELECTOR
from omni_operator.api.status import Status
from omni_operator.cluster.kinds import JOBS, NETWORK_POLICIES, PODS, RAYCLUSTERS, RAYJOBS

EVENTS = (
    "start run succeed fail lose_head flap pod_gone rayjob_gone cluster_gone policy_gone suspend resume report "
    "checkpoint crash relist wait long_wait stuck free edit invalid valid queue unqueue delete reject outage "
    "recover thaw clock_right save restore unlabel unlabel_cluster recreate hold_job release_job kuberay_gone "
    "kuberay_back policy_changed"
)
# Frequent: what makes the life of a job, and the end of a fault, without which little happens.
LIFE = "run run fail lose_head wait suspend resume stuck thaw thaw recover kuberay_back"
# What happens to one of the next writes; watches that deliver nothing; an operator whose clock is wrong.
FAULTS = [(fault, after) for fault in Fault if fault is not Fault.REJECTED for after in range(4)]
FROZEN = [JOBS, RAYJOBS, RAYCLUSTERS, PODS]
SKEWS = [-400, -30, 30, 400]
ACTIONS = st.sampled_from([*EVENTS.split(), *LIFE.split() * 4, *FAULTS, *FROZEN, *SKEWS])
POLICIES = st.sampled_from(
    [
        {},
        {"backoffLimit": 2},
        {"activeDeadlineSeconds": 900},
        {"cleanupPolicy": "Retain"},
        {"backoffLimit": 1, "ttlSecondsAfterFinished": 50},
        {"suspendPolicy": {"mode": "Immediate"}},
        {"failurePolicy": {"rules": [{"onReasons": ["HeadLost"], "action": "RetryIgnoreLimit"}]}},
    ]
)


class History:
    """Actions applied to a simulation, each if it is possible."""

    def __init__(self, simulation: Any, policy: dict[str, Any]) -> None:
        self.simulation = simulation
        self.limit = policy.get("backoffLimit", 0)
        self._ends: dict[str, Status] = {}
        self._saved: dict[Any, Any] | None = None
        simulation.submit(**policy)

    @property
    def attempt(self) -> int:
        numbers = [int(name.rpartition("-a")[2]) for name in self.simulation.attempts()]
        return max(numbers, default=0)

    async def apply(self, what: Any) -> None:
        """Apply an action and let the operator make its passes."""
        simulation = self.simulation
        if isinstance(what, tuple):
            self._fail_one_write(*what)
        elif what in (JOBS, RAYJOBS, RAYCLUSTERS, PODS):
            simulation.frozen.add(what)
        elif isinstance(what, int):
            simulation.skew = timedelta(seconds=what)
        elif what in ("wait", "long_wait"):
            await simulation.after(10 if what == "wait" else 1000)
        elif what in ("outage", "reject", "recover", "thaw", "clock_right", "crash", "relist", "save", "restore"):
            await self._of_operator(what)
        elif what in ("kuberay_gone", "kuberay_back"):
            self._of_kuberay(there=what == "kuberay_back")
        elif simulation.cluster.get(JOBS, *KEY) is None:
            simulation.submit()
            self.limit = 0
        else:
            self._of_job(what)
            if self.attempt:
                self._of_attempt(what, self.attempt)
        await simulation.settle()
        self.check()

    async def _of_operator(self, what: str) -> None:
        simulation = self.simulation
        match what:
            case "outage":
                simulation.fault = lambda write: Fault.NOT_SENT
            case "reject":
                simulation.fault = lambda write: None if write.partition(" ")[0] in OF_THE_JOB else Fault.REJECTED
            case "recover":
                simulation.fault = lambda write: None
            case "thaw":
                simulation.frozen.clear()
            case "clock_right":
                simulation.skew = timedelta()
            case "crash":
                simulation.start_operator()
            case "save":
                self._saved = simulation.cluster.save()
            case "restore" if self._saved is not None:  # the operator observes everything again
                simulation.cluster.restore(self._saved)
                self._ends.clear()
                simulation.start_operator()
            case "relist":
                for kind in (JOBS, PODS) if simulation.cluster.absent else (JOBS, RAYJOBS, RAYCLUSTERS, PODS):
                    listing = await simulation.cluster.list_metadata(kind, None, "" if kind == JOBS else SELECTOR)
                    alive = {str(meta["uid"]) for meta in listing.items}
                    for key in simulation.cache.remove_missing(kind, alive, listing.version):
                        simulation.wakes[key] = simulation.now

    def _of_kuberay(self, *, there: bool) -> None:
        """KubeRay is removed with its kinds and all of their objects, or installed: then the operator restarts."""
        simulation = self.simulation
        kinds = {RAYJOBS, RAYCLUSTERS}
        if there and simulation.cluster.absent:
            simulation.cluster.absent = set()
            simulation.start_operator()
        elif not there:
            for kind in kinds:
                for body in simulation.cluster.all(kind):
                    meta = body["metadata"]
                    simulation.cluster.change(kind, KEY[0], meta["name"], metadata={"finalizers": []})
                    simulation.cluster.remove(kind, KEY[0], meta["name"])
            simulation.cluster.absent = kinds

    def _fail_one_write(self, fault: Fault, after: int) -> None:
        left = [after]

        def fail(write: str) -> Fault | None:
            left[0] -= 1
            return fault if left[0] == -1 else None

        self.simulation.fault = fail

    def _of_job(self, what: str) -> None:
        simulation = self.simulation
        match what:
            case "suspend" | "resume":
                simulation.edit(suspend=what == "suspend")
            case "edit":
                simulation.edit(seed=simulation.passes % 1000)
            case "invalid" | "valid":
                simulation.edit(rollout={"replicas": 3 if what == "invalid" else 2})
            case "delete":
                simulation.cluster.remove(JOBS, *KEY)
            case "recreate":  # before the operator sees that it was deleted
                simulation.cluster.change(JOBS, *KEY, metadata={"finalizers": []})
                simulation.cluster.remove(JOBS, *KEY)
                simulation.submit()
                self.limit = 0
            case "hold_job" | "release_job":  # a finalizer of another controller keeps the job
                finalizers = ["example.com/slow"] if what == "hold_job" else []
                job = simulation.cluster.get(JOBS, *KEY)
                if finalizers == [] or not job["metadata"].get("deletionTimestamp"):
                    simulation.cluster.change(JOBS, *KEY, metadata={"finalizers": finalizers})
            case "policy_gone":
                simulation.cluster.remove(NETWORK_POLICIES, *KEY)
            case "policy_changed" if simulation.cluster.get(NETWORK_POLICIES, *KEY):
                simulation.cluster.change(NETWORK_POLICIES, *KEY, spec={"ingress": []})

    def _of_attempt(self, what: str, attempt: int) -> None:
        simulation = self.simulation
        name = f"red-a{attempt:02d}"
        rayjob = simulation.cluster.get(RAYJOBS, KEY[0], name)
        ended = (rayjob.get("status") or {}).get("jobDeploymentStatus") in ("Complete", "Failed")
        cluster = simulation.cluster.get(RAYCLUSTERS, KEY[0], f"{name}-x1")
        head = simulation.cluster.get(PODS, KEY[0], f"{name}-x1-head")
        match what:
            case "start" if not ended:
                simulation.start(attempt)
            case "run" if not ended and (cluster is None or head is not None):
                if cluster is None or simulation.cluster.get(PODS, KEY[0], f"{name}-x1-worker"):
                    simulation.run(attempt)
            case "succeed" if not ended:
                simulation.end(attempt)
            case "fail" if not ended:
                simulation.end(attempt, "FAILED", "AppFailed", "exit code 1")
            case "lose_head" if cluster is not None and head is not None and not ended:
                simulation.lose_head(attempt)
            case "flap" if cluster is not None and not ended:
                simulation.head(attempt, simulation.passes % 2 == 0, "ContainersNotReady")
            case "stuck" | "free" if cluster is not None:
                self._hold_cluster(f"{name}-x1", held=what == "stuck")
            case "pod_gone":
                simulation.cluster.remove(PODS, KEY[0], f"{name}-x1-worker")
            case "rayjob_gone":
                simulation.cluster.remove(RAYJOBS, KEY[0], name)
            case "unlabel":
                self._remove_label(RAYJOBS, name)
            case "unlabel_cluster" if cluster is not None:
                self._remove_label(RAYCLUSTERS, f"{name}-x1")
            case "cluster_gone":
                simulation.cluster.remove(RAYCLUSTERS, KEY[0], f"{name}-x1")
            case "queue" | "unqueue" if not ended:
                simulation.cluster.change(RAYJOBS, KEY[0], name, spec={"suspend": what == "queue"})
            case "report":
                simulation.report(attempt=attempt, step=simulation.passes, samples=simulation.passes)
            case "checkpoint":
                simulation.report("checkpoint", attempt=attempt, path=f"/ckpt/step_{simulation.passes:06d}")

    def _hold_cluster(self, name: str, *, held: bool) -> None:
        """A finalizer of another controller keeps the RayCluster."""
        finalizers = ["ray.io/slow"] if held else []
        self.simulation.cluster.change(RAYCLUSTERS, KEY[0], name, metadata={"finalizers": finalizers})

    def _remove_label(self, kind: Any, name: str) -> None:
        """A user removes the label by which watches find the object."""
        self.simulation.cluster.change(kind, KEY[0], name, metadata={"labels": {JOB_LABEL: None}})

    def check(self) -> None:
        """Check what holds at any time."""
        simulation = self.simulation
        live = {
            body["metadata"]["labels"]["diffusionrl.io/attempt"]
            for kind in (RAYJOBS, RAYCLUSTERS)
            for body in simulation.cluster.all(kind)
        }
        assert len(live) <= 1, live
        job = simulation.cluster.get(JOBS, *KEY)
        if job is None:
            return
        status = Status.model_validate(job.get("status") or {})
        assert status.failures_counted <= self.limit + 1, "more attempts than spec.backoffLimit allows"
        numbers = [failure.attempt for failure in status.failures]
        assert numbers == sorted(set(numbers))
        assert not (status.is_true("Succeeded") and status.is_true("Failed"))
        if status.finished:
            end = self._ends.setdefault(job["metadata"]["uid"], status)
            for kind in ("Succeeded", "Failed"):
                assert status.condition(kind).status == end.condition(kind).status, "terminal stays terminal"
            assert (status.completion_time, status.attempts, status.failures) == (
                end.completion_time,
                end.attempts,
                end.failures,
            )

    async def check_final_state(self) -> None:
        """Check the fixed point, after all faults have ended."""
        simulation = self.simulation
        simulation.fault = lambda write: None
        simulation.skew = timedelta()
        simulation.frozen.clear()
        self._of_kuberay(there=True)
        if simulation.cluster.get(JOBS, *KEY) is not None:
            self._of_job("release_job")
        for cluster in simulation.cluster.all(RAYCLUSTERS):
            self._hold_cluster(cluster["metadata"]["name"], held=False)
        await simulation.after(7200)
        await simulation.reconcile()  # the first pass with the right clock
        await simulation.settle()
        self.check()
        simulation.cluster.collect()
        simulation.cluster.counts()
        if simulation.cluster.get(JOBS, *KEY) is None:
            for kind in (RAYJOBS, RAYCLUSTERS, PODS, NETWORK_POLICIES):
                assert not simulation.cluster.all(kind), kind
            return
        await simulation.reconcile()
        await simulation.settle()
        assert not simulation.cluster.counts()
        simulation.start_operator()
        await simulation.settle()
        assert not simulation.cluster.counts(), "a restart writes"
        self._check_final_status(simulation.status())

    def _check_final_status(self, status: Status) -> None:
        assert len(status.conditions) == 14
        if status.finished:
            assert status.completion_time
            assert status.attempts >= self.attempt
        elif status.is_true("Suspended"):
            assert not self.simulation.attempts()
        elif (
            status.condition("Admitted").reason != "InvalidSpec" and status.condition("Updated").reason != "InvalidSpec"
        ):
            assert len(self.simulation.attempts()) == 1, "a job that should run has no attempt"


# `HISTORIES=10000` searches for new ones; without it the same histories are tried every time.
HISTORIES = os.environ.get("HISTORIES")


@pytest.mark.slow
@given(POLICIES, st.lists(ACTIONS, min_size=15, max_size=60))
@settings(
    max_examples=int(HISTORIES or 100),
    derandomize=HISTORIES is None,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_every_history_converges(new_simulation: Any, policy: dict[str, Any], actions: list[Any]) -> None:
    async def run() -> None:
        history = History(new_simulation(), policy)
        await history.simulation.settle()
        for what in actions:
            await history.apply(what)
        await history.check_final_state()

    asyncio.run(run())
