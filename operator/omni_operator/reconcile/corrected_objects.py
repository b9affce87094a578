"""Objects of a job that the operator keeps as they should be: created, corrected, and changed after the spec.

Another program may change them back each time. After some corrections in a row the operator waits before the next one,
longer each time, and finds out who it is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from omni_operator.cluster.cache.object_cache import ObjectCache
from omni_operator.cluster.errors import AlreadyExists, Forbidden, KindAbsent, Refused
from omni_operator.cluster.field_managers import find_author
from omni_operator.cluster.kinds import RAYCLUSTERS, RAYJOBS, Key, Kind, kind_of
from omni_operator.cluster.protocol import Cluster, GroupChange
from omni_operator.reconcile import owned_objects
from omni_operator.reconcile.corrections import AT_ONCE, Change, change_of, describe
from omni_operator.reconcile.pass_memory import JobMemory, PassMemory
from omni_operator.reconcile.pod_replacement import replace_pods
from omni_operator.reconcile.queued_attempt import reserve_quota
from omni_operator.reconcile.refused_requests import BACKOFF_MOST
from omni_operator.reconcile.spec_cache import ValidSpec
from omni_operator.status.decisions.situation import ReplacementStep, ReserveQuota, ScaleGroup, Step
from omni_operator.status.observed.job_facts import JobFacts
from omni_operator.status.observed.observation import ObservedRayCluster
from omni_operator.status.observed.running_pods import as_running

SHARED = Change(("shared objects",))
# the field that says who changed a worker group
GROUPS = ("f:spec", "f:workerGroupSpecs")
RAYJOB_GROUPS = ("f:spec", "f:rayClusterSpec", "f:workerGroupSpecs")
log = logging.getLogger(__name__)


def is_paused(step: Step, memory: JobMemory, facts: JobFacts, now: datetime) -> bool:
    """Whether a step is a correction that has to wait."""
    change = change_of(step)
    return change is not None and memory.corrections.of(change).pause_end(now, facts.generation) is not None


@dataclass(slots=True)
class CorrectedObjects:
    """The objects of all jobs."""

    cluster: Cluster
    cache: ObjectCache
    memory: PassMemory
    clock: Callable[[], datetime]

    async def ensure_shared(self, key: Key, spec: ValidSpec, facts: JobFacts) -> None:
        """Create shared objects that are missing, and correct those that differ. PodMonitors are optional.

        Nothing is compared while neither the generation nor any of these objects changes.
        """
        memory = self.memory.of(key, facts.uid)
        if memory.ensured == (facts.uid, facts.generation, self.cache.shared_change(key)):
            return
        # No attempt starts without them.
        pause_end = memory.corrections.of(SHARED).pause_end(self.clock(), facts.generation)
        if pause_end and self.cache.observed(key, facts.uid).rayjobs:
            memory.ensured = None
            return
        complete = True
        for body in spec.shared:
            kind = kind_of(body)
            name = body["metadata"]["name"]
            live = self.cache.shared(key, kind, name)
            if self.memory.absent.get(kind, self.clock()) > self.clock():
                complete = False
                continue
            author = await self._find_author(memory, SHARED, kind, key[0], name)
            try:
                answer = await owned_objects.ensure(self.cluster, live, body)
            except KindAbsent as error:
                if kind.group != "monitoring.coreos.com":
                    raise
                log.warning("%s/%s: PodMonitor not created, next try in %s: %s", *key, BACKOFF_MOST, error)
                self.memory.absent[kind] = self.clock() + BACKOFF_MOST
                complete = False
                continue
            self.cache.put(kind, answer)
            if answer is not live:
                self._add(key, memory, facts, SHARED, describe(f"{kind.kind} {name}", author))
        memory.ensured = (facts.uid, facts.generation, self.cache.shared_change(key)) if complete else None

    async def protect(self, key: Key, spec: ValidSpec, facts: JobFacts, cluster: ObservedRayCluster) -> None:
        """Create the PodDisruptionBudget of an attempt, once: an administrator may delete it for a drain.

        Where a policy of the cluster refuses it, the attempt runs without.
        """
        running = as_running(facts, self.cache.observed(key, facts.uid), cluster.attempt)
        body = spec.budget(cluster, running.trainer.pods)
        try:
            if body:
                await self.cluster.create(body)
        except AlreadyExists:
            pass
        except (Refused, KindAbsent) as error:
            log.warning("%s/%s: no PodDisruptionBudget for attempt %d: %s", *key, cluster.attempt, error)

    async def change_group(
        self, key: Key, spec: ValidSpec | None, facts: JobFacts, step: ScaleGroup | ReplacementStep
    ) -> None:
        """Change a worker group of a running attempt."""
        memory = self.memory.of(key, facts.uid)
        change = change_of(step)
        name = step.cluster.name
        assert change is not None
        author = await self._find_author(memory, change, RAYCLUSTERS, key[0], name, *GROUPS)
        if isinstance(step, ScaleGroup):
            group = GroupChange(step.index, step.group, step.old, step.new, step.removed, step.limits)
            answer = await self.cluster.scale_group(RAYCLUSTERS, key[0], name, step.cluster.uid, group)
        else:
            assert spec is not None
            rendered = spec.group(step.group.name, step.cluster.attempt)
            answer = await replace_pods(self.cluster, key[0], step, rendered, self.clock())
        self.cache.put(RAYCLUSTERS, answer)
        self._add(key, memory, facts, change, describe(_name(step), author))

    async def reserve_quota(self, key: Key, facts: JobFacts, step: ReserveQuota) -> None:
        """Change the number of pods in a RayJob, by which Kueue reserves quota."""
        memory = self.memory.of(key, facts.uid)
        change = change_of(step)
        name = step.rayjob.name
        assert change is not None
        author = await self._find_author(memory, change, RAYJOBS, key[0], name, *RAYJOB_GROUPS)
        answer = await reserve_quota(self.cluster, key[0], step)
        if answer is not None:
            self.cache.put(RAYJOBS, answer)
            text = f"the number of pods of worker group {step.request.group} of {RAYJOBS.kind} {name}"
            self._add(key, memory, facts, change, describe(text, author))

    async def _find_author(
        self, memory: JobMemory, change: Change, kind: Kind, namespace: str, name: str, *field: str
    ) -> str:
        """Who changed an object that was corrected often; empty for others, and if it is not known."""
        if memory.corrections.of(change).count + 1 < AT_ONCE:
            return ""
        try:
            live = await self.cluster.read(kind, namespace, name)
        except Forbidden as error:
            log.warning("%s/%s: %s", namespace, name, error)
            return ""
        return find_author(live, *field) if live else ""

    def _add(self, key: Key, memory: JobMemory, facts: JobFacts, change: Change, text: str) -> None:
        now = self.clock()
        memory.corrections.add(change, now, facts.generation, text)
        if end := memory.corrections.of(change).pause_end(now, facts.generation):
            log.warning("%s/%s: %s: until %s", *key, text, end)


def _name(step: ScaleGroup | ReplacementStep) -> str:
    """What a step changes, for a message."""
    group = step.group if isinstance(step, ScaleGroup) else step.group.name
    what = "the number of pods" if isinstance(step, ScaleGroup) else "the pods"
    if isinstance(step, ScaleGroup) and step.limits:
        what = "minReplicas or maxReplicas"
    return f"{what} of worker group {group} of {RAYCLUSTERS.kind} {step.cluster.name}"
