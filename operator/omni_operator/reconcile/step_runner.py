"""Steps of a pass: requests to the API server that create, correct, change and delete the objects of a job.

Another program may change them back each time. After some corrections in a row the operator waits before the next one,
longer each time, and finds out who it is.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from omni_operator.cluster.cache.object_cache import ObjectCache
from omni_operator.cluster.errors import (
    AlreadyExists,
    Conflict,
    Forbidden,
    KindAbsent,
    NotFound,
    NotGoneYet,
    Refused,
)
from omni_operator.cluster.field_managers import find_author
from omni_operator.cluster.kinds import JOBS, RAYCLUSTERS, RAYJOBS, Body, Key, Kind
from omni_operator.cluster.protocol import Cluster
from omni_operator.plan import render_budget
from omni_operator.reconcile.corrections import AT_ONCE, Change, describe
from omni_operator.reconcile.owned_objects import create_owned, ensure_owned
from omni_operator.reconcile.pass_memory import PassMemory
from omni_operator.reconcile.pod_replacement import replace_pods
from omni_operator.reconcile.queued_attempt import ask_for_pods, reserve_quota
from omni_operator.reconcile.refused_requests import BACKOFF_MOST
from omni_operator.reconcile.spec_cache import ValidSpec
from omni_operator.reconcile.subject import Subject
from omni_operator.status.decisions.situation import (
    AskForPods,
    BetweenAttempts,
    CreateAttempt,
    Creating,
    Decision,
    DeleteRayJob,
    DeleteSelf,
    EnsureShared,
    ProtectPods,
    ReplacementStep,
    ReplacePods,
    RequestCheckpoint,
    ReserveQuota,
    ScaleGroup,
    Situation,
    Step,
)
from omni_operator.status.observed.observation import Refusal, TrainerReport

SHARED = Change(("shared objects",))
# Fields that say who changed a worker group.
GROUPS = ("f:spec", "f:workerGroupSpecs")
RAYJOB_GROUPS = ("f:spec", "f:rayClusterSpec", "f:workerGroupSpecs")
GroupStep = ScaleGroup | ReserveQuota | ReplacementStep
log = logging.getLogger(__name__)


class ReportSource(Protocol):
    """Reports of trainers, and requests for them."""

    def newest(self, key: Key, uid: str) -> TrainerReport | None:
        """The newest report of the job with this uid."""

    def ask_checkpoint(self, key: Key, since: datetime) -> None:
        """Request a checkpoint in the answer to the next report."""

    def forget(self, key: Key) -> None:
        """Drop what is stored of a deleted job."""


@dataclass(frozen=True, slots=True)
class Applied:
    """What became of the steps of a pass. After a refusal or a conflict, the steps that follow are not tried.

    Attributes:
        situation: the decided one, or that an earlier job's object has the name of one that was to be created.
        refusal: the request that the API server refuses.
        conflict: whether an object had changed since it was observed.
    """

    situation: Situation
    refusal: Refusal | None = None
    conflict: bool = False


@dataclass(frozen=True, slots=True)
class StepRunner:
    """Carries out the steps of all jobs, and caches the API server's answers.

    Attributes:
        written: called with every RayJob that was created, as the API server returned it.
    """

    cluster: Cluster
    cache: ObjectCache
    reports: ReportSource
    memory: PassMemory
    written: Callable[[Kind, Body], None]

    async def apply_steps(self, job: Subject, decision: Decision) -> Applied:
        """Carry out the steps; none while a refused request waits to be repeated."""
        refused = job.memory.refused
        situation = decision.situation
        if refusal := refused.standing(job.now):
            return Applied(situation, refusal)
        for step in decision.steps:
            try:
                with refused.counting_errors():
                    await self._run(step, job)
            except (Refused, KindAbsent) as error:
                log.warning("%s/%s: the API server rejected a request: %s", *job.key, error)
                return Applied(situation, refused.begin_pause(error, job.now))
            except (Conflict, NotFound) as error:
                log.info("%s/%s: conflict: %s", *job.key, error)
                if isinstance(error, NotGoneYet) and isinstance(situation, Creating):
                    situation = BetweenAttempts(str(error))
                return Applied(situation, conflict=True)
        refused.clear()
        return Applied(situation)

    async def _run(self, step: Step, job: Subject) -> None:
        namespace, _ = job.key
        spec = job.spec
        match step:
            case DeleteRayJob(name=name, uid=uid):
                await self.cluster.delete(RAYJOBS, namespace, name, uid)
                return
            case DeleteSelf():
                await self.cluster.delete(JOBS, *job.key, job.facts.uid)
                return
            case RequestCheckpoint(since=since):
                self.reports.ask_checkpoint(job.key, since)
                return
            case _:
                pass
        if not isinstance(spec, ValidSpec):
            return  # nothing is created or changed
        match step:
            case EnsureShared(required=required):
                await self._ensure_shared(job, spec, required=required)
            case ProtectPods(cluster=cluster, trainers=trainers):
                budget = render_budget(spec.job, cluster.attempt, cluster.name, cluster.uid, trainers)
                await self._protect(job, budget)
            case CreateAttempt(number=number):
                answer = await create_owned(self.cluster, RAYJOBS, spec.attempt(number))
                self.cache.put(RAYJOBS, answer)
                self.written(RAYJOBS, answer)
            case AskForPods():
                if asked := await ask_for_pods(self.cluster, namespace, step, job.now):
                    self.cache.put(RAYJOBS, asked)
            case _:
                await self._change_group(step, job, spec)

    async def _ensure_shared(self, job: Subject, spec: ValidSpec, *, required: bool) -> None:
        """Create shared objects that are missing, and correct those that differ. PodMonitors are optional.

        Nothing is compared while neither the job's generation nor any of these objects changes.
        """
        memory = job.memory
        if memory.ensured == self.cache.shared_change(job.key):
            return
        memory.ensured = None
        if memory.corrections.pause_end(SHARED, job.now) and not required:
            return
        complete = True
        for kind, body in spec.shared:
            name = body["metadata"]["name"]
            live = self.cache.shared(job.key, kind, name)
            if self.memory.absent.get(kind, job.now) > job.now:
                complete = False
                continue
            author = await self._find_author(job, SHARED, kind, name)
            try:
                answer = await ensure_owned(self.cluster, kind, live, body)
            except KindAbsent as error:
                if kind.group != "monitoring.coreos.com":
                    raise
                log.warning("%s/%s: PodMonitor not created, next try in %s: %s", *job.key, BACKOFF_MOST, error)
                self.memory.absent[kind] = job.now + BACKOFF_MOST
                complete = False
                continue
            self.cache.put(kind, answer)
            if answer is not live:
                self._add(job, SHARED, describe(f"{kind.kind} {name}", author))
        if complete:
            memory.ensured = self.cache.shared_change(job.key)

    async def _protect(self, job: Subject, budget: Body | None) -> None:
        """Create the PodDisruptionBudget. Where a policy of the cluster refuses it, the attempt runs without."""
        try:
            if budget:
                await self.cluster.create(budget)
        except AlreadyExists:
            pass
        except (Refused, KindAbsent) as error:
            log.warning("%s/%s: no PodDisruptionBudget: %s", *job.key, error)

    async def _change_group(self, step: GroupStep, job: Subject, spec: ValidSpec) -> None:
        """Change a worker group of a RayCluster, or its number of pods in the RayJob, by which Kueue reserves quota."""
        change = change_of(step)
        if job.memory.corrections.pause_end(change, job.now):
            return
        namespace, _ = job.key
        kind = RAYJOBS if isinstance(step, ReserveQuota) else RAYCLUSTERS
        name = step.rayjob.name if isinstance(step, ReserveQuota) else step.cluster.name
        author = await self._find_author(job, change, kind, name, RAYJOB_GROUPS if kind == RAYJOBS else GROUPS)
        what = "the number of pods"
        match step:
            case ReserveQuota(request=request):
                group = request.group
                answer = await reserve_quota(self.cluster, namespace, step)
            case ScaleGroup(cluster=cluster, change=scaled):
                group = scaled.group
                answer = await self.cluster.scale_group(kind, namespace, name, cluster.uid, scaled)
                what = "minReplicas or maxReplicas" if scaled.limits else what
            case _:
                group = step.group.name
                rendered = spec.group(group, step.cluster.attempt)
                answer = await replace_pods(self.cluster, namespace, step, rendered, job.now)
                what = "the pods"
        if answer is not None:
            self.cache.put(kind, answer)
            self._add(job, change, describe(f"{what} of worker group {group} of {kind.kind} {name}", author))

    async def _find_author(
        self, job: Subject, change: Change, kind: Kind, name: str, field: tuple[str, ...] = ()
    ) -> str:
        """Who changed an object that was corrected often; empty for others, and if it is not known."""
        if job.memory.corrections.count(change) + 1 < AT_ONCE:
            return ""
        try:
            live = await self.cluster.read(kind, job.key[0], name)
        except Forbidden as error:
            log.warning("%s/%s: %s", job.key[0], name, error)
            return ""
        return find_author(live, *field) if live else ""

    def _add(self, job: Subject, change: Change, text: str) -> None:
        job.memory.corrections.record(change, job.now, text)
        if end := job.memory.corrections.pause_end(change, job.now):
            log.warning("%s/%s: %s: until %s", *job.key, text, end)


def change_of(step: GroupStep) -> Change:
    """What a step changes of a worker group."""
    match step:
        case ScaleGroup(cluster=cluster, change=scaled):
            return Change((cluster.uid, scaled.group, "replicas"), scaled.new)
        case ReserveQuota(rayjob=rayjob, request=request):
            return Change((rayjob.uid, request.group, "replicas"), step.new)
        case ReplacePods(cluster=cluster, group=group):
            return Change((cluster.uid, group.name, "pods"), step.removed)
        case _:
            return Change((step.cluster.uid, step.group.name, type(step).__name__))
