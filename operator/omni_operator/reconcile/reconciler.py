"""Reconciler: one pass over a job.

    observe                decide           apply                  write
    cache, reports   -->   next steps  -->  requests to the   -->  the status, if it changed,
    (without requests)     (PURE)           API server             and its events


Every trigger leads here: a change of the job or of a child, a report, a timer, a resync. A pass depends only on the
observed objects and the written status, so it can be repeated, interrupted anywhere, or continued by another process.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from omni_operator.api.status import Status
from omni_operator.cluster.cache.job_parser import parse_job_facts, parse_metadata_facts, parse_status
from omni_operator.cluster.cache.object_cache import ObjectCache
from omni_operator.cluster.errors import (
    ClusterError,
    Conflict,
    NotFound,
    Refused,
)
from omni_operator.cluster.event_writer import EventWriter
from omni_operator.cluster.kinds import JOBS, Body, Key, Kind
from omni_operator.cluster.protocol import Cluster
from omni_operator.plan import ClusterSettings
from omni_operator.reconcile.lost_children import recover_lost
from omni_operator.reconcile.pass_errors import PassErrors
from omni_operator.reconcile.pass_memory import PassMemory
from omni_operator.reconcile.queued_attempt import REREAD, REREAD_UNTRIED, read_queue_reason
from omni_operator.reconcile.spec_cache import SpecCache, ValidSpec
from omni_operator.reconcile.status_writer import APART, is_as_decided, next_write_time, write_status
from omni_operator.reconcile.step_runner import ReportSource, StepRunner
from omni_operator.reconcile.subject import Subject
from omni_operator.status.decisions.decision import decide, needs_spec
from omni_operator.status.decisions.rolling import hold_templates, replaces_missing
from omni_operator.status.decisions.situation import (
    Active,
    Decision,
)
from omni_operator.status.decisions.timeouts import Timeouts
from omni_operator.status.decisions.verdict import InProgress, Stage
from omni_operator.status.observed.job_facts import without_pods
from omni_operator.status.observed.observation import Observation, Refusal
from omni_operator.status.observed.running_pods import as_admitted
from omni_operator.status.observed.timestamps import EARLIEST
from omni_operator.status.report.events import find_events
from omni_operator.status.report.job_status import (
    Context,
    derive_invalid_status,
    derive_status,
    derive_unknown_status,
    find_deadlines,
)
from omni_operator.status.report.spec_applied import is_outdated

# pauses after conflicts in a row, doubled
SOON = timedelta(seconds=1)
LATEST = timedelta(minutes=1)
log = logging.getLogger(__name__)


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
            memory.refused.forget_errors()
        if result.result != "conflict":
            memory.conflicts = 0
            return result
        # The cache is older than the API server's state, and the watch will update it.
        wait = min(SOON * 2 ** min(memory.conflicts, 16), LATEST)
        memory.conflicts += 1
        log.info("%s/%s: conflict, next pass in %s", *key, wait)
        return replace(result, wake=now + wait)

    async def _reconcile(self, key: Key, body: Body, now: datetime) -> ReconcileResult:
        if body["metadata"].get("deletionTimestamp"):
            # Kubernetes deletes its objects by their owner references. What the spec and the status say is not read:
            # nothing in them can prevent the deletion.
            return ReconcileResult()
        spec = self._specs.get(key, body, self.settings)
        if spec.job is not None and spec.job.spec.managed_by != "diffusionrl.io/operator":
            return ReconcileResult()
        facts = parse_job_facts(body, spec.job.spec) if spec.job else parse_metadata_facts(body)
        facts = facts if isinstance(spec, ValidSpec) else without_pods(facts)
        job = Subject(key, body, spec, facts, parse_status(body), self._memory.of(key, facts.uid), now)
        return await self._pass(job) if spec.job else await self._without_spec(job, spec.refused or "")

    def _forget(self, key: Key) -> ReconcileResult:
        """Drop what is stored of a job that does not exist any more."""
        self._memory.forget(key)
        self._specs.forget(key)
        self.reports.forget(key)
        return ReconcileResult(gone=True, result="gone")

    async def _pass(self, job: Subject) -> ReconcileResult:
        if not job.status.finished and (unknown := await self._recover(job)):
            return unknown
        job, observed = self._observe_attempts(job)
        decision = decide(job.facts, observed, job.status, self.timeouts, job.now)
        # The operator's settings may have become stricter: a running attempt continues to its end.
        if job.refused_spec and needs_spec(decision.situation, observed, job.status):
            return await self._without_spec(job, job.refused_spec)
        decision = await self._explain_queue(job, decision, observed)
        refusal = None
        conflict = False
        steps = StepRunner(self.cluster, self.cache, self.reports, self._memory, self.clock, self.written)
        try:
            refusal = await steps.run(job, decision.steps)
        except (Conflict, NotFound) as error:
            log.info("%s/%s: conflict: %s", *job.key, error)
            conflict = True
        current = self.cache.job(job.key)
        if current is None:
            return ReconcileResult(gone=True, result="gone")
        if not is_as_decided(current, job.body):
            return ReconcileResult(result="conflict")
        result = await self._write_outcome(replace(job, body=current), decision, refusal)
        return replace(result, result="conflict") if conflict else result

    async def _recover(self, job: Subject) -> ReconcileResult | None:
        """Look up objects that the watches have lost. The pass's result if it stays unknown which objects exist."""
        try:
            if await recover_lost(self.cluster, self.cache, job):
                return None
        except Refused as error:
            log.warning("%s/%s: the API server rejected a request: %s", *job.key, error)
            job.add_refusal(error)
        refusal = job.standing_refusal
        derived = derive_unknown_status(job.facts, job.status, refusal, job.changed_by_others, job.now)
        await self._write(job, derived)
        wakes = [job.memory.refused.until] if refusal else job.correction_times()
        return ReconcileResult(wake=min(filter(None, wakes)), result="refused" if refusal else "conflict")

    def _observe_attempts(self, job: Subject) -> tuple[Subject, Observation]:
        """What exists of the job, and the job with the facts that depend on it."""
        observed = job.memory.with_times_seen(self._observe(job.key, job.facts.uid), job.now)
        allowed = job.spec if isinstance(job.spec, ValidSpec) and not job.spec.refused else None
        facts = hold_templates(job.facts, observed, allowed.has_rendered if allowed else None)
        facts = as_admitted(facts, observed)
        if allowed:
            facts = replace(facts, outdated=is_outdated(facts, job.status, observed, allowed.makes))
        return replace(job, facts=facts), observed

    async def _explain_queue(self, job: Subject, decision: Decision, observed: Observation) -> Decision:
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

    async def _write_outcome(self, job: Subject, decision: Decision, refusal: Refusal | None) -> ReconcileResult:
        """Derive the status from what exists after the steps, write it, and find the time of the next pass."""
        after = self._observe(job.key, job.facts.uid)
        context = Context(
            timeouts=self.timeouts,
            now=job.now,
            listening=self._memory.listening,
            refusal=refusal,
            refused_spec=job.refused_spec or None,
            changed_by_others=job.changed_by_others,
        )
        derived = derive_status(job.facts, after, job.status, decision.situation, context)
        replaced = replaces_missing(after, max(job.status.attempts, after.newest))
        written = await self._write(job, derived, replaced=replaced)
        wakes = [
            decision.wake,
            job.memory.refused.until if refusal else None,
            *job.correction_times(),
            *find_deadlines(job.facts, decision.situation, derived, after, context),
        ]
        # What was due by now, this pass has done or could not do: only a written status is followed by a pass at once.
        wakes = [written.wake, *(at for at in wakes if at and at > job.now)]
        wake = min(filter(None, wakes), default=None)
        return ReconcileResult(wake=wake, result="refused" if refusal else written.result)

    async def _without_spec(self, job: Subject, text: str) -> ReconcileResult:
        """A pass over a job with an invalid spec: the status names the errors."""
        observed = self._observe(job.key, job.facts.uid)
        return await self._write(job, derive_invalid_status(job.facts, observed, job.status, text, job.now))

    def _observe(self, key: Key, uid: str) -> Observation:
        return replace(self.cache.observed(key, uid), report=self.reports.newest(key, uid))

    async def _write(self, job: Subject, derived: Status, *, replaced: bool = False) -> ReconcileResult:
        """Write the status if it is due, then create events for what changed; `replaced` as in `find_events`."""
        memory = job.memory
        due = next_write_time(job.status, derived, memory.written, job.now)
        if due and memory.altered and memory.written:
            due = max(due, memory.written + APART)
        if due is None or due > job.now:
            return ReconcileResult(wake=due)
        with memory.refused.counting_errors(job.facts.generation):
            answer, written = await write_status(self.cluster, job.body, derived.body())
        if answer is None:
            # Deleted, and the watch is late. Garbage collection deletes what this pass created: its owner is gone.
            self.cache.remove(JOBS, job.body)
            return self._forget(job.key)
        self.cache.put(JOBS, answer)
        if not written:
            return ReconcileResult(result="conflict")
        self.written(JOBS, answer)
        memory.written = job.now
        # By an admission webhook, which would do so each time.
        memory.altered = parse_status(answer) != derived
        known = {failure.attempt for failure in job.status.failures}
        for failure in derived.failures:
            if failure.attempt not in known:
                self.failed(failure.reason)
        for event in find_events(job.status, derived, replaced=replaced):
            await self._events.create(job.body, event, job.now)
        # The next pass follows at once: after a failure it creates the next attempt without waiting for the watch.
        return ReconcileResult(wake=job.now + SOON if memory.altered else job.now, result="wrote")
