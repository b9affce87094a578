"""From any state that people, KubeRay, kubelets and crashes can bring about, a fixed point is reached.

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
HAPPENINGS = st.sampled_from([
    "start", "run", "succeed", "fail", "lose_head", "flap", "pod_gone", "rayjob_gone", "cluster_gone", "service_gone",
    "suspend", "resume", "report", "checkpoint", "crash", "cut", "refuse", "outage", "relist", "wait", "long_wait",
    "edit", "invalid", "valid", "queue", "unqueue", "delete",
])  # fmt: skip
POLICIES = st.sampled_from([
    {}, {"backoffLimit": 2}, {"activeDeadlineSeconds": 900}, {"cleanupPolicy": "Retain"},
    {"backoffLimit": 1, "ttlSecondsAfterFinished": 50}, {"suspendPolicy": {"mode": "Immediate"}},
    {"failurePolicy": {"rules": [{"onReasons": ["HeadLost"], "action": "RetryIgnoreLimit"}]}},
])  # fmt: skip


class History:
    """Happenings applied to a world, each where it can happen."""

    def __init__(self, world: Any) -> None:
        self.world = world

    @property
    def attempt(self) -> int:
        numbers = [int(name.rpartition("-a")[2]) for name in self.world.attempts()]
        return max(numbers, default=0)

    async def happen(self, what: str) -> None:
        world, attempt = self.world, self.attempt
        job = world.cluster.get(JOBS, *KEY)
        if what in ("wait", "long_wait"):
            await world.after(10 if what == "wait" else 1000)
        elif what == "crash":
            world.start_operator()
        elif what == "cut":
            await self._cut()
        elif what in ("refuse", "outage"):
            await self._refused(what)
        elif what == "relist":
            for kind in (JOBS, RAYJOBS, RAYCLUSTERS, PODS):
                listing = await world.cluster.listing(kind, None, "")
                for key in world.cache.prune(kind, listing.items, listing.version):
                    world.wakes[key] = world.now
        elif job is not None:
            self._of_job(what)
            if attempt:
                self._of_attempt(what, attempt)
        else:
            world.submit()

    def _of_job(self, what: str) -> None:
        world = self.world
        match what:
            case "suspend" | "resume":
                world.edit(suspend=what == "suspend")
            case "edit":
                world.edit(seed=world.passes % 1000)
            case "invalid" | "valid":
                world.edit(rollout={"replicas": 3 if what == "invalid" else 2})
            case "delete":
                world.cluster.remove(JOBS, *KEY)
            case "service_gone":
                world.cluster.remove(SERVICES, KEY[0], "red-head")

    def _of_attempt(self, what: str, attempt: int) -> None:
        world, name = self.world, f"red-a{attempt:02d}"
        there = world.cluster.get(RAYJOBS, KEY[0], name)
        ended = (there.get("status") or {}).get("jobDeploymentStatus") in ("Complete", "Failed")
        cluster = world.cluster.get(RAYCLUSTERS, KEY[0], f"{name}-x1")
        head = world.cluster.get(PODS, KEY[0], f"{name}-x1-head")
        match what:
            case "start" if not ended:
                world.start(attempt)
            case "run" if not ended and (cluster is None or head is not None):
                if cluster is None or world.cluster.get(PODS, KEY[0], f"{name}-x1-worker"):
                    world.run(attempt)
            case "succeed" if not ended:
                world.end(attempt)
            case "fail" if not ended:
                world.end(attempt, "FAILED", "AppFailed", "exit code 1")
            case "lose_head" if cluster is not None and head is not None and not ended:
                world.lose_head(attempt)
            case "flap" if cluster is not None and not ended:
                world.head(attempt, world.passes % 2 == 0, "ContainersNotReady")
            case "pod_gone":
                world.cluster.remove(PODS, KEY[0], f"{name}-x1-worker")
            case "rayjob_gone":
                world.cluster.remove(RAYJOBS, KEY[0], name)
            case "cluster_gone":
                world.cluster.remove(RAYCLUSTERS, KEY[0], f"{name}-x1")
            case "queue" | "unqueue" if not ended:
                world.cluster.change(RAYJOBS, KEY[0], name, spec={"suspend": what == "queue"})
            case "report":
                world.report(attempt=attempt, step=world.passes, samples=world.passes)
            case "checkpoint":
                world.report("checkpoint", attempt=attempt, path=f"/ckpt/step_{world.passes:06d}")

    async def _cut(self) -> None:
        """The process dies between two requests of a pass."""
        world, left = self.world, [1]

        def cut(verb: str, kind: Kind, name: str) -> ClusterError | None:
            left[0] -= 1
            return Unavailable("cut") if left[0] < 0 else None

        world.watch()
        world.cluster.refusals = cut
        try:
            await world.reconcile()
        except Unavailable:
            pass
        finally:
            world.cluster.refusals = lambda verb, kind, name: None
            world.start_operator()

    async def _refused(self, what: str) -> None:
        world = self.world
        error = Refused("no") if what == "refuse" else Unavailable("away")
        world.watch()
        world.cluster.refusals = lambda verb, kind, name: error if verb == "apply" else None
        try:
            await world.reconcile()
        except Unavailable:
            world.wakes[KEY] = world.now
        finally:
            world.cluster.refusals = lambda verb, kind, name: None

    def at_most_one_attempt(self) -> None:
        live = {
            body["metadata"]["labels"]["diffusionrl.io/attempt"]
            for kind in (RAYJOBS, RAYCLUSTERS)
            for body in self.world.cluster.all(kind)
        }
        assert len(live) <= 1, live

    async def rest(self) -> None:
        """What holds when nothing happens any more."""
        world = self.world
        await world.after(3600)
        self.at_most_one_attempt()
        world.cluster.collect()
        world.cluster.counts()
        if world.cluster.get(JOBS, *KEY) is None:
            for kind in (RAYJOBS, RAYCLUSTERS, PODS, SERVICES):
                assert not world.cluster.all(kind), kind
            return
        await world.reconcile()
        await world.settle()
        assert not world.cluster.counts()
        world.start_operator()
        await world.settle()
        assert not world.cluster.counts(), "a restart writes"
        status = world.status()
        assert len(status.conditions) == 10
        assert not (status.is_true("Succeeded") and status.is_true("Failed"))
        if status.is_true("Suspended"):
            assert not world.attempts()
        if status.finished:
            assert status.completion_time
            assert status.attempts == max([status.attempts, self.attempt])
        numbers = [failure.attempt for failure in status.failures]
        assert numbers == sorted(set(numbers))


@given(POLICIES, st.lists(HAPPENINGS, max_size=30))
@settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
def test_every_history_comes_to_rest(new_world: Any, policy: dict[str, Any], happenings: list[str]) -> None:
    async def live() -> None:
        history = History(new_world())
        history.world.submit(**policy)
        await history.world.settle()
        for what in happenings:
            await history.happen(what)
            await history.world.settle()
            history.at_most_one_attempt()
        await history.rest()

    asyncio.run(live())
