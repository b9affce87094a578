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
from omni_operator.cluster.kinds import RAYCLUSTERS, RAYJOBS, Kind, kind_of
from omni_operator.cluster.protocol import Cluster, GroupChange
from omni_operator.reconcile import owned_objects
from omni_operator.reconcile.corrections import AT_ONCE, Change, change_of, describe
from omni_operator.reconcile.pass_memory import JobMemory, PassMemory
from omni_operator.reconcile.pod_replacement import replace_pods
from omni_operator.reconcile.queued_attempt import reserve_quota
from omni_operator.reconcile.refused_requests import BACKOFF_MOST
from omni_operator.reconcile.spec_cache import ValidSpec
from omni_operator.reconcile.subject import Subject
from omni_operator.status.decisions.situation import ReplacementStep, ReserveQuota, ScaleGroup, Step
from omni_operator.status.observed.observation import ObservedRayCluster
from omni_operator.status.observed.running_pods import as_running

SHARED = Change(("shared objects",))
# Fields that say who changed a worker group.
GROUPS = ("f:spec", "f:workerGroupSpecs")
RAYJOB_GROUPS = ("f:spec", "f:rayClusterSpec", "f:workerGroupSpecs")
log = logging.getLogger(__name__)


def is_paused(step: Step, job: Subject) -> bool:
    """Whether a step is a correction that has to wait."""
    change = change_of(step)
    return change is not None and job.pause_end(change) is not None


@dataclass(slots=True)
class CorrectedObjects:
    """The objects of all jobs."""

    cluster: Cluster
    cache: ObjectCache
    memory: PassMemory
    clock: Callable[[], datetime]

    async def ensure_shared(self, job: Subject, spec: ValidSpec) -> None:
        """Create shared objects that are missing, and correct those that differ. PodMonitors are optional.

        Nothing is compared while neither the generation nor any of these objects changes.
        """
        key = job.key
        facts = job.facts
        memory = job.memory
        if memory.ensured == (facts.uid, facts.generation, self.cache.shared_change(key)):
            return
        # No attempt starts without them.
        if job.pause_end(SHARED) and self.cache.observed(key, facts.uid).rayjobs:
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
                self._add(job, SHARED, describe(f"{kind.kind} {name}", author))
        memory.ensured = (facts.uid, facts.generation, self.cache.shared_change(key)) if complete else None

    async def protect(self, job: Subject, spec: ValidSpec, cluster: ObservedRayCluster) -> None:
        """Create the PodDisruptionBudget of an attempt, once: an administrator may delete it for a drain.

        Where a policy of the cluster refuses it, the attempt runs without.
        """
        running = as_running(job.facts, self.cache.observed(job.key, job.facts.uid), cluster.attempt)
        body = spec.budget(cluster, running.trainer.pods)
        try:
            if body:
                await self.cluster.create(body)
        except AlreadyExists:
            pass
        except (Refused, KindAbsent) as error:
            log.warning("%s/%s: no PodDisruptionBudget for attempt %d: %s", *job.key, cluster.attempt, error)

    async def change_group(self, job: Subject, spec: ValidSpec | None, step: ScaleGroup | ReplacementStep) -> None:
        """Change a worker group of a running attempt."""
        namespace, _ = job.key
        change = change_of(step)
        name = step.cluster.name
        assert change is not None
        author = await self._find_author(job.memory, change, RAYCLUSTERS, namespace, name, *GROUPS)
        if isinstance(step, ScaleGroup):
            group = GroupChange(step.index, step.group, step.old, step.new, step.removed, step.limits)
            answer = await self.cluster.scale_group(RAYCLUSTERS, namespace, name, step.cluster.uid, group)
        else:
            assert spec is not None
            rendered = spec.group(step.group.name, step.cluster.attempt)
            answer = await replace_pods(self.cluster, namespace, step, rendered, self.clock())
        self.cache.put(RAYCLUSTERS, answer)
        self._add(job, change, describe(_name(step), author))

    async def reserve_quota(self, job: Subject, step: ReserveQuota) -> None:
        """Change the number of pods in a RayJob, by which Kueue reserves quota."""
        namespace, _ = job.key
        change = change_of(step)
        name = step.rayjob.name
        assert change is not None
        author = await self._find_author(job.memory, change, RAYJOBS, namespace, name, *RAYJOB_GROUPS)
        answer = await reserve_quota(self.cluster, namespace, step)
        if answer is not None:
            self.cache.put(RAYJOBS, answer)
            text = f"the number of pods of worker group {step.request.group} of {RAYJOBS.kind} {name}"
            self._add(job, change, describe(text, author))

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

    def _add(self, job: Subject, change: Change, text: str) -> None:
        now = self.clock()
        corrections = job.memory.corrections
        corrections.add(change, now, job.facts.generation, text)
        if end := corrections.of(change).pause_end(now, job.facts.generation):
            log.warning("%s/%s: %s: until %s", *job.key, text, end)


def _name(step: ScaleGroup | ReplacementStep) -> str:
    """What a step changes, for a message."""
    group = step.group if isinstance(step, ScaleGroup) else step.group.name
    what = "the number of pods" if isinstance(step, ScaleGroup) else "the pods"
    if isinstance(step, ScaleGroup) and step.limits:
        what = "minReplicas or maxReplicas"
    return f"{what} of worker group {group} of {RAYCLUSTERS.kind} {step.cluster.name}"
