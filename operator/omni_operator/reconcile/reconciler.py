"""Reconciler: one pass over a job.

    observe                decide           apply                  write
    cache, reports   -->   next steps  -->  requests to the   -->  the status, if it changed,
    (without requests)     (PURE)           API server             and its events


Every trigger leads here: a change of the job or of a child, a report, a timer, a resync. A pass depends only on the
observed objects and the written status, so it can be repeated, interrupted anywhere, or continued by another process.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Protocol, TypeVar

from omni_operator.api.status import Status
from omni_operator.cluster.cache.job_parser import parse_job_facts, parse_metadata_facts, parse_status
from omni_operator.cluster.cache.object_cache import ObjectCache
from omni_operator.cluster.errors import (
    ClusterError,
    Conflict,
    KindAbsent,
    NotFound,
    Refused,
    ServerError,
    ServerFailed,
)
from omni_operator.cluster.event_writer import EventWriter
from omni_operator.cluster.kinds import JOBS, RAYJOBS, Body, Key, Kind
from omni_operator.cluster.protocol import Cluster
from omni_operator.plan import ClusterSettings
from omni_operator.reconcile import owned_objects
from omni_operator.reconcile.corrected_objects import CorrectedObjects, is_paused
from omni_operator.reconcile.lost_children import recover_lost
from omni_operator.reconcile.pass_errors import PassErrors
from omni_operator.reconcile.pass_memory import JobMemory, PassMemory
from omni_operator.reconcile.queued_attempt import REREAD, REREAD_UNTRIED, ask_for_pods, read_queue_reason
from omni_operator.reconcile.refused_requests import NO_REFUSALS, NO_SERVER_ERRORS
from omni_operator.reconcile.spec_cache import InvalidSpec, SpecCache, ValidSpec
from omni_operator.reconcile.status_writer import is_as_decided, write_status
from omni_operator.status.decisions.decision import decide, needs_spec
from omni_operator.status.decisions.rolling import hold_templates, replaces_missing
from omni_operator.status.decisions.situation import (
    Active,
    AskForPods,
    CreateAttempt,
    Decision,
    DeleteRayJob,
    DeleteSelf,
    EnsureShared,
    RequestCheckpoint,
    ReserveQuota,
    Step,
)
from omni_operator.status.decisions.timeouts import Timeouts
from omni_operator.status.decisions.verdict import InProgress, Stage
from omni_operator.status.observed.job_facts import JobFacts, without_pods
from omni_operator.status.observed.observation import Observation, Refusal, TrainerReport
from omni_operator.status.observed.running_pods import as_admitted
from omni_operator.status.observed.timestamps import EARLIEST
from omni_operator.status.report.events import find_events
from omni_operator.status.report.job_status import Context, derive_invalid_status, derive_status, derive_unknown_status
from omni_operator.status.report.spec_applied import is_outdated
from omni_operator.status.report.wake_times import find_deadlines
from omni_operator.status.report.write_throttle import APART, next_write_time

# pauses after conflicts in a row, doubled
SOON = timedelta(seconds=1)
LATEST = timedelta(minutes=1)
WITHOUT_SPEC = (DeleteRayJob, DeleteSelf, RequestCheckpoint)  # steps that create and change no pods
Answer = TypeVar("Answer")
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
class ReconcileResult:
    """Result of a pass.

    Attributes:
        gone: whether the job does not exist any more.
        wake: time of the next pass, after this one unless it wrote the status; None: the next resync.
        result: for metrics: `ok`, `wrote`, `refused`, `conflict` or `gone`.
    """

    gone: bool = False
    wake: datetime | None = None
    result: str = "ok"


@dataclass(frozen=True, slots=True)
class _Subject:
    """The job of a pass, as it was when the pass began."""

    key: Key
    body: Body
    spec: ValidSpec | InvalidSpec
    facts: JobFacts
    status: Status
    memory: JobMemory
    now: datetime

    @property
    def refused_spec(self) -> str:
        """Why the operator's settings refuse the spec; empty for a job that has ended."""
        return "" if self.status.finished else self.spec.refused or ""


@dataclass(frozen=True, slots=True)
class _Applied:
    """Outcome of the steps of a pass.

    Attributes:
        refusal: the request that the API server refuses; the steps after it were not tried.
        conflict: whether an object had changed since it was observed.
    """

    refusal: Refusal | None = None
    conflict: bool = False


@dataclass(slots=True)
class Reconciler:
    """Passes over jobs. Passes over different jobs may overlap; passes over one job must not.

    Attributes:
        instance: name of this process.
        failed: called with the reason of every failed attempt.
        written: called with every RayJob that was created and every job whose status was written, as the API server
            returned it.
    """

    cluster: Cluster
    cache: ObjectCache
    reports: ReportSource
    settings: ClusterSettings
    clock: Callable[[], datetime]
    instance: str
    timeouts: Timeouts = field(default_factory=Timeouts)
    failed: Callable[[str], None] = lambda reason: None
    written: Callable[[Kind, Body], None] = lambda kind, body: None
    _specs: SpecCache = field(default_factory=SpecCache)
    _memory: PassMemory = field(default_factory=PassMemory)

    @property
    def _objects(self) -> CorrectedObjects:
        return CorrectedObjects(self.cluster, self.cache, self._memory, self.clock)

    @property
    def _events(self) -> EventWriter:
        return EventWriter(self.cluster, self.instance)

    async def reconcile(self, key: Key) -> ReconcileResult:
        """Make one pass.

        Raises:
            Unavailable: the API server did not answer; retry later.
        """
        with self.cache.pass_over(key):
            body = self.cache.job(key)
            return self._forget(key) if body is None else await self._reconcile_job(key, body)

    async def _reconcile_job(self, key: Key, body: Body) -> ReconcileResult:
        now = self.clock()
        self._memory.begin_pass(now)
        errors = PassErrors(self.cluster, self.cache, self._events)
        try:
            result = await self._reconcile(key, body, now)
        except Exception as error:
            if isinstance(error, Refused) or not isinstance(error, ClusterError):
                await errors.show(key, body, error, now)
            raise
        await errors.clear(key, body)
        if result.gone:
            return result
        memory = self._memory.of(key, body["metadata"]["uid"])
        if result.result != "refused":
            memory.server_errors = NO_SERVER_ERRORS
        if result.result != "conflict":
            memory.conflicts = 0
            return result
        # The cache is older than the API server's state, and the watch will update it.
        wait = min(SOON * 2 ** min(memory.conflicts, 16), LATEST)
        memory.conflicts += 1
        log.info("%s/%s: conflict, next pass in %s", *key, wait)
        return replace(result, wake=now + wait)

    async def _reconcile(self, key: Key, body: Body, now: datetime) -> ReconcileResult:
        if (facts := parse_metadata_facts(body)).deleting is not None:
            return await self._delete(key, facts, now)
        status = parse_status(body)
        spec = self._specs.get(key, body, self.settings)
        if spec.job is None:
            return await self._without_spec(key, body, status, spec.refused or "", now)
        if spec.job.spec.managed_by != "diffusionrl.io/operator":
            return ReconcileResult()
        facts = parse_job_facts(body, spec.job.spec)
        facts = facts if isinstance(spec, ValidSpec) else without_pods(facts)
        memory = self._memory.of(key, facts.uid)
        return await self._pass(_Subject(key, body, spec, facts, status, memory, now))

    async def _delete(self, key: Key, facts: JobFacts, now: datetime) -> ReconcileResult:
        """A pass over a job that is being deleted. It reads neither spec nor status, so neither can prevent it."""
        decision = decide(facts, self._observe(key, facts.uid), Status(), self.timeouts, now)
        memory = self._memory.of(key, facts.uid)
        try:
            for step in decision.steps:
                await self._count_errors(memory, facts, self._perform(step, key, None, facts))
        except (Conflict, NotFound) as error:
            log.info("%s/%s: conflict: %s", *key, error)
            return ReconcileResult(result="conflict")
        return ReconcileResult(wake=decision.wake) if self.cache.job(key) else self._forget(key)

    def _forget(self, key: Key) -> ReconcileResult:
        """Drop what is stored of a job that does not exist any more."""
        self._memory.forget(key)
        self._specs.forget(key)
        self.reports.forget(key)
        return ReconcileResult(gone=True, result="gone")

    async def _pass(self, job: _Subject) -> ReconcileResult:
        if not job.status.finished and (unknown := await self._recover(job)):
            return unknown
        job, observed = self._observe_attempts(job)
        decision = decide(job.facts, observed, job.status, self.timeouts, job.now)
        # The operator's settings may have become stricter: a running attempt continues to its end.
        if job.refused_spec and needs_spec(decision.situation, observed, job.status):
            return await self._without_spec(job.key, job.body, job.status, job.refused_spec, job.now)
        decision = await self._explain_queue(job, decision, observed)
        applied = await self._apply(job, decision.steps)
        current = self.cache.job(job.key)
        if current is None:
            return ReconcileResult(gone=True, result="gone")
        if not is_as_decided(current, job.body):
            return ReconcileResult(result="conflict")
        return await self._write_outcome(job, current, decision, applied)

    async def _recover(self, job: _Subject) -> ReconcileResult | None:
        """Look up objects that the watches have lost. The pass's result if it stays unknown which objects exist."""
        memory = job.memory
        generation = job.facts.generation
        try:
            known = await recover_lost(self.cluster, self.cache, job.key, job.facts, job.status, memory, job.now)
        except Refused as error:
            log.warning("%s/%s: the API server rejected a request: %s", *job.key, error)
            memory.refusals = memory.refusals.add(error, generation, job.now)
            known = False
        if known:
            return None
        refusal = memory.refusals.standing(generation, job.now)
        others = memory.corrections.changed_by_others(job.now, generation)
        derived = derive_unknown_status(job.facts, job.status, refusal, others, job.now)
        write = self._write(job.key, job.body, job.status, derived, memory, job.now)
        await self._count_errors(memory, job.facts, write)
        wakes = [memory.refusals.until] if refusal else memory.corrections.times(job.now, generation)
        return ReconcileResult(wake=min(filter(None, wakes)), result="refused" if refusal else "conflict")

    def _observe_attempts(self, job: _Subject) -> tuple[_Subject, Observation]:
        """What exists of the job, and the job with the facts that depend on it."""
        observed = job.memory.with_times_seen(self._observe(job.key, job.facts.uid), job.now)
        facts = hold_templates(job.facts, observed, lambda number: self._unchanged(job.spec, observed, number))
        facts = as_admitted(facts, observed)
        if isinstance(job.spec, ValidSpec) and not job.spec.refused:
            facts = replace(facts, outdated=is_outdated(facts, job.status, observed, job.spec.makes))
        return replace(job, facts=facts), observed

    async def _apply(self, job: _Subject, steps: Sequence[Step]) -> _Applied:
        """Carry out the steps up to the first that fails; none while a refused request waits to be repeated."""
        memory = job.memory
        if refusal := memory.refusals.standing(job.facts.generation, job.now):
            return _Applied(refusal)
        valid = job.spec if isinstance(job.spec, ValidSpec) else None
        possible = [step for step in steps if valid or isinstance(step, WITHOUT_SPEC)]
        for step in [step for step in possible if not is_paused(step, memory, job.facts, job.now)]:
            try:
                await self._count_errors(memory, job.facts, self._perform(step, job.key, valid, job.facts))
            except (Conflict, NotFound) as error:
                log.info("%s/%s: conflict: %s", *job.key, error)
                return _Applied(conflict=True)
            except (Refused, KindAbsent) as error:
                log.warning("%s/%s: the API server rejected a request: %s", *job.key, error)
                memory.refusals = memory.refusals.add(error, job.facts.generation, job.now)
                return _Applied(memory.refusals.last)
        memory.refusals = NO_REFUSALS
        return _Applied()

    async def _explain_queue(self, job: _Subject, decision: Decision, observed: Observation) -> Decision:
        """The decision with Kueue's reason, where a queue of Kueue has not admitted the attempt."""
        memory = job.memory
        match decision.situation:
            case Active(attempt=attempt, going=InProgress(stage=Stage.QUEUED) as going):
                rayjob = observed.rayjob(attempt)
            case _:
                memory.queue_reread = EARLIEST
                return decision
        if rayjob is None or not rayjob.in_queue:
            return decision
        if memory.queue_reread <= job.now:
            reason = await read_queue_reason(self.cluster, job.key[0], rayjob.uid)
            memory.queue_reason = reason or ""
            memory.queue_reread = job.now + (REREAD_UNTRIED if reason == "" else REREAD)
        situation = Active(attempt, replace(going, problem=memory.queue_reason))
        wake = min(filter(None, (decision.wake, memory.queue_reread)))
        return replace(decision, situation=situation, wake=wake)

    async def _write_outcome(
        self, job: _Subject, current: Body, decision: Decision, applied: _Applied
    ) -> ReconcileResult:
        """Derive the status from what exists after the steps, write it, and find the time of the next pass."""
        memory = job.memory
        generation = job.facts.generation
        after = self._observe(job.key, job.facts.uid)
        context = Context(
            timeouts=self.timeouts,
            now=job.now,
            listening=self._memory.listening,
            refusal=applied.refusal,
            refused_spec=job.refused_spec or None,
            changed_by_others=memory.corrections.changed_by_others(job.now, generation),
        )
        derived = derive_status(job.facts, after, job.status, decision.situation, context)
        replaced = replaces_missing(after, max(job.status.attempts, after.newest))
        write = self._write(job.key, current, job.status, derived, memory, job.now, replaced=replaced)
        written = await self._count_errors(memory, job.facts, write)
        wakes = [
            decision.wake,
            memory.refusals.until if applied.refusal else None,
            *memory.corrections.times(job.now, generation),
            *find_deadlines(job.facts, decision.situation, derived, after, context),
        ]
        # What was due by now, this pass has done or could not do: only a written status is followed by a pass at once.
        wakes = [written.wake, *(at for at in wakes if at and at > job.now)]
        result = "refused" if applied.refusal else "conflict" if applied.conflict else written.result
        return ReconcileResult(wake=min(filter(None, wakes), default=None), result=result)

    async def _without_spec(self, key: Key, body: Body, status: Status, text: str, now: datetime) -> ReconcileResult:
        """A pass over a job with an invalid spec: the status names the errors."""
        facts = parse_metadata_facts(body)
        memory = self._memory.of(key, facts.uid)
        observed = self._observe(key, facts.uid)
        context = Context(timeouts=self.timeouts, now=now, listening=now)
        derived = derive_invalid_status(facts, observed, status, text, context)
        return await self._count_errors(memory, facts, self._write(key, body, status, derived, memory, now))

    def _unchanged(self, spec: ValidSpec | InvalidSpec, observed: Observation, number: int) -> bool:
        """Whether the spec is allowed, and differs from the attempt's only in fields that can change while it runs."""
        rayjob = observed.rayjob(number)
        if isinstance(spec, InvalidSpec) or spec.refused or rayjob is None:
            return False
        return rayjob.digest == spec.digest(number)

    def _observe(self, key: Key, uid: str) -> Observation:
        return replace(self.cache.observed(key, uid), report=self.reports.newest(key, uid))

    async def _count_errors(self, memory: JobMemory, facts: JobFacts, request: Awaitable[Answer]) -> Answer:
        """The answer of a request.

        Raises:
            ServerFailed: the API server has answered with 500, or not in time, too often in a row.
        """
        try:
            return await request
        except ServerError as error:
            memory.server_errors = memory.server_errors.add(error, facts.generation)
            if memory.server_errors.is_refusal:
                raise ServerFailed(str(error)) from error
            raise

    async def _perform(self, step: Step, key: Key, spec: ValidSpec | None, facts: JobFacts) -> None:
        """Carry out one step and cache the API server's answer."""
        match step:
            case EnsureShared(new=cluster):
                assert spec is not None
                await self._objects.ensure_shared(key, spec, facts)
                if cluster:
                    await self._objects.protect(key, spec, facts, cluster)
            case CreateAttempt(number=number):
                assert spec is not None
                answer = await owned_objects.create(self.cluster, spec.attempt(number))
                self.cache.put(RAYJOBS, answer)
                self.written(RAYJOBS, answer)
            case AskForPods():
                if asked := await ask_for_pods(self.cluster, key[0], step, self.clock()):
                    self.cache.put(RAYJOBS, asked)
            case ReserveQuota():
                await self._objects.reserve_quota(key, facts, step)
            case DeleteRayJob(name=name, uid=uid):
                await self.cluster.delete(RAYJOBS, key[0], name, uid)
            case DeleteSelf():
                await self.cluster.delete(JOBS, *key, facts.uid)
            case RequestCheckpoint(since=since):
                self.reports.ask_checkpoint(key, since)
            case _:
                await self._objects.change_group(key, spec, facts, step)

    async def _write(
        self,
        key: Key,
        body: Body,
        status: Status,
        derived: Status,
        memory: JobMemory,
        now: datetime,
        *,
        replaced: bool = False,
    ) -> ReconcileResult:
        """Write the status if it is due, then create events for what changed; `replaced` as in `find_events`."""
        due = next_write_time(status, derived, memory.written, now)
        if due and memory.altered and memory.written:
            due = max(due, memory.written + APART)
        if due is None or due > now:
            return ReconcileResult(wake=due)
        values = derived.body()
        answer, written = await write_status(self.cluster, body, values)
        if answer is None:
            # Deleted, and the watch is late. Garbage collection deletes what this pass created: its owner is gone.
            self.cache.remove(JOBS, body)
            return self._forget(key)
        self.cache.put(JOBS, answer)
        if not written:
            return ReconcileResult(result="conflict")
        self.written(JOBS, answer)
        # By an admission webhook, which would do so each time.
        memory.written = now
        memory.altered = parse_status(answer) != derived
        known = {failure.attempt for failure in status.failures}
        for failure in derived.failures:
            if failure.attempt not in known:
                self.failed(failure.reason)
        for event in find_events(status, derived, replaced=replaced):
            await self._events.create(body, event, now)
        # The next pass follows at once: after a failure it creates the next attempt without waiting for the watch.
        return ReconcileResult(wake=now + SOON if memory.altered else now, result="wrote")
