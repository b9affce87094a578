"""Random histories: from any state that users, KubeRay, kubelets and crashes cause, the operator converges.

At the fixed point: at most one attempt, nothing without an owner, nothing running that should not be, and no write.
"""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from omni_operator.cluster.errors import ClusterError, Refused, Unavailable
from omni_operator.cluster.kinds import JOBS, PODS, RAYCLUSTERS, RAYJOBS, SERVICES, Kind

KEY = ("team-a", "red")
ACTIONS = st.sampled_from([
    "start", "run", "succeed", "fail", "lose_head", "flap", "pod_gone", "rayjob_gone", "cluster_gone", "service_gone",
    "suspend", "resume", "report", "checkpoint", "crash", "kill", "reject", "outage", "relist", "wait", "long_wait",
    "edit", "invalid", "valid", "queue", "unqueue", "delete",
])  # fmt: skip
POLICIES = st.sampled_from([
    {}, {"backoffLimit": 2}, {"activeDeadlineSeconds": 900}, {"cleanupPolicy": "Retain"},
    {"backoffLimit": 1, "ttlSecondsAfterFinished": 50}, {"suspendPolicy": {"mode": "Immediate"}},
    {"failurePolicy": {"rules": [{"onReasons": ["HeadLost"], "action": "RetryIgnoreLimit"}]}},
])  # fmt: skip


class History:
    """Actions applied to a simulation, each if it is possible."""

    def __init__(self, simulation: Any) -> None:
        self.simulation = simulation

    @property
    def attempt(self) -> int:
        numbers = [int(name.rpartition("-a")[2]) for name in self.simulation.attempts()]
        return max(numbers, default=0)

    async def apply(self, what: str) -> None:
        simulation, attempt = self.simulation, self.attempt
        job = simulation.cluster.get(JOBS, *KEY)
        if what in ("wait", "long_wait"):
            await simulation.after(10 if what == "wait" else 1000)
        elif what == "crash":
            simulation.start_operator()
        elif what == "kill":
            await self._kill()
        elif what in ("reject", "outage"):
            await self._fail_requests(what)
        elif what == "relist":
            for kind in (JOBS, RAYJOBS, RAYCLUSTERS, PODS):
                listing = await simulation.cluster.list_metadata(kind, None, "")
                for key in simulation.cache.prune(kind, listing.items, listing.version):
                    simulation.wakes[key] = simulation.now
        elif job is not None:
            self._of_job(what)
            if attempt:
                self._of_attempt(what, attempt)
        else:
            simulation.submit()

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
            case "service_gone":
                simulation.cluster.remove(SERVICES, KEY[0], "red-head")

    def _of_attempt(self, what: str, attempt: int) -> None:
        simulation, name = self.simulation, f"red-a{attempt:02d}"
        there = simulation.cluster.get(RAYJOBS, KEY[0], name)
        ended = (there.get("status") or {}).get("jobDeploymentStatus") in ("Complete", "Failed")
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
            case "pod_gone":
                simulation.cluster.remove(PODS, KEY[0], f"{name}-x1-worker")
            case "rayjob_gone":
                simulation.cluster.remove(RAYJOBS, KEY[0], name)
            case "cluster_gone":
                simulation.cluster.remove(RAYCLUSTERS, KEY[0], f"{name}-x1")
            case "queue" | "unqueue" if not ended:
                simulation.cluster.change(RAYJOBS, KEY[0], name, spec={"suspend": what == "queue"})
            case "report":
                simulation.report(attempt=attempt, step=simulation.passes, samples=simulation.passes)
            case "checkpoint":
                simulation.report("checkpoint", attempt=attempt, path=f"/ckpt/step_{simulation.passes:06d}")

    async def _kill(self) -> None:
        """The operator is killed between two requests of a pass."""
        simulation, left = self.simulation, [1]

        def kill(verb: str, kind: Kind, name: str) -> ClusterError | None:
            left[0] -= 1
            return Unavailable("kill") if left[0] < 0 else None

        simulation.watch()
        simulation.cluster.failures = kill
        try:
            await simulation.reconcile()
        except Unavailable:
            pass
        finally:
            simulation.cluster.failures = lambda verb, kind, name: None
            simulation.start_operator()

    async def _fail_requests(self, what: str) -> None:
        simulation = self.simulation
        error = Refused("no") if what == "reject" else Unavailable("away")
        simulation.watch()
        simulation.cluster.failures = lambda verb, kind, name: error if verb == "apply" else None
        try:
            await simulation.reconcile()
        except Unavailable:
            simulation.wakes[KEY] = simulation.now
        finally:
            simulation.cluster.failures = lambda verb, kind, name: None

    def at_most_one_attempt(self) -> None:
        live = {
            body["metadata"]["labels"]["diffusionrl.io/attempt"]
            for kind in (RAYJOBS, RAYCLUSTERS)
            for body in self.simulation.cluster.all(kind)
        }
        assert len(live) <= 1, live

    async def check_final_state(self) -> None:
        """Check the invariants of the final state."""
        simulation = self.simulation
        await simulation.after(3600)
        self.at_most_one_attempt()
        simulation.cluster.collect()
        simulation.cluster.counts()
        if simulation.cluster.get(JOBS, *KEY) is None:
            for kind in (RAYJOBS, RAYCLUSTERS, PODS, SERVICES):
                assert not simulation.cluster.all(kind), kind
            return
        await simulation.reconcile()
        await simulation.settle()
        assert not simulation.cluster.counts()
        simulation.start_operator()
        await simulation.settle()
        assert not simulation.cluster.counts(), "a restart writes"
        status = simulation.status()
        assert len(status.conditions) == 10
        assert not (status.is_true("Succeeded") and status.is_true("Failed"))
        if status.is_true("Suspended"):
            assert not simulation.attempts()
        if status.finished:
            assert status.completion_time
            assert status.attempts == max([status.attempts, self.attempt])
        numbers = [failure.attempt for failure in status.failures]
        assert numbers == sorted(set(numbers))


@given(POLICIES, st.lists(ACTIONS, max_size=30))
@settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
def test_every_history_converges(new_simulation: Any, policy: dict[str, Any], actions: list[str]) -> None:
    async def run() -> None:
        history = History(new_simulation())
        history.simulation.submit(**policy)
        await history.simulation.settle()
        for what in actions:
            await history.apply(what)
            await history.simulation.settle()
            history.at_most_one_attempt()
        await history.check_final_state()

    asyncio.run(run())
