"""Reconciler: one pass over a job.

    observe                decide              apply                   write
    cache, reports   -->   next steps    -->   requests to the   -->   the status, if it changed,
    (without requests)     (decision.py,       API server              and its events
                           PURE)               (step_runner.py)        (job_status.py, status_writer.py)

Every trigger leads here: a change of the job or of a child, a report, a timer, a resync. A pass depends only on the
observed objects and the written status, so it can be repeated, interrupted anywhere, or continued by another process.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from omni_operator.cluster.cache.job_parser import parse_job_facts, parse_status
from omni_operator.cluster.cache.object_cache import ObjectCache
from omni_operator.cluster.errors import ClusterError, Refused
from omni_operator.cluster.event_writer import EventWriter
from omni_operator.cluster.kinds import Body, Key, Kind
from omni_operator.cluster.protocol import Cluster
from omni_operator.plan import ClusterSettings
from omni_operator.reconcile.lost_children import recover_lost
from omni_operator.reconcile.pass_errors import PassErrors
from omni_operator.reconcile.pass_memory import JobMemory, PassMemory
from omni_operator.reconcile.queued_attempt import explain_queue
from omni_operator.reconcile.spec_cache import SpecCache, ValidSpec
from omni_operator.reconcile.status_writer import StatusWriter, is_as_decided
from omni_operator.reconcile.step_runner import ReportSource, StepRunner
from omni_operator.reconcile.subject import ReconcileResult, Subject
from omni_operator.status.decisions.decision import decide
from omni_operator.status.decisions.snapshot import Snapshot
from omni_operator.status.decisions.timeouts import Timeouts
from omni_operator.status.observed.job_facts import without_pods
from omni_operator.status.observed.running_pods import compare_with_attempt
from omni_operator.status.report.job_status import derive_status, derive_unknown_status, find_deadlines

# pauses after conflicts in a row, doubled
SOON = timedelta(seconds=1)
LATEST = timedelta(minutes=1)
log = logging.getLogger(__name__)


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
    _runner: StepRunner = field(init=False)
    _writer: StatusWriter = field(init=False)
    _errors: PassErrors = field(init=False)

    def __post_init__(self) -> None:
        events = EventWriter(self.cluster, self.instance)
        self._runner = StepRunner(self.cluster, self.cache, self.reports, self._memory, self.written)
        self._writer = StatusWriter(self.cluster, self.cache, events, self.failed, self.written)
        self._errors = PassErrors(self.cluster, self.cache, events)

    async def reconcile(self, key: Key) -> ReconcileResult:
        """Make one pass.

        Raises:
            Unavailable: the API server did not answer; retry later.
        """
        with self.cache.pass_over(key):
            body = self.cache.job(key)
            result = ReconcileResult(result="gone") if body is None else await self._reconcile_job(key, body)
        if result.gone:
            self._memory.forget(key)
            self._specs.forget(key)
            self.reports.forget(key)
        return result

    async def _reconcile_job(self, key: Key, body: Body) -> ReconcileResult:
        """Make a pass over an existing job, and remember whether it failed or ended with a conflict."""
        now = self.clock()
        meta = body["metadata"]
        self._memory.begin_pass(now)
        memory = self._memory.of(key, str(meta["uid"]), int(meta.get("generation") or 0))
        try:
            result = await self._reconcile(key, body, memory, now)
        except Exception as error:
            if isinstance(error, Refused) or not isinstance(error, ClusterError):
                await self._errors.show(key, body, error, now)
            raise
        await self._errors.clear(key, body)
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

    async def _reconcile(self, key: Key, body: Body, memory: JobMemory, now: datetime) -> ReconcileResult:
        """Read the job, unless it is being deleted or managed by others, and make the pass over it."""
        if body["metadata"].get("deletionTimestamp"):
            # Kubernetes deletes its objects by their owner references. What the spec and the status say is not read:
            # nothing in them can prevent the deletion.
            return ReconcileResult()
        spec = self._specs.get(key, body, self.settings)
        if spec.job is not None and spec.job.spec.managed_by != "diffusionrl.io/operator":
            return ReconcileResult()
        facts = parse_job_facts(body, spec.job)
        facts = facts if isinstance(spec, ValidSpec) else without_pods(facts)
        job = Subject(key, body, spec, facts, parse_status(body), memory, now)
        if spec.job and not job.status.finished and (unknown := await self._recover(job)):
            return unknown
        return await self._pass(job)

    async def _recover(self, job: Subject) -> ReconcileResult | None:
        """Look up objects that the watches have lost. The pass's result if it stays unknown which objects exist."""
        refused = job.memory.refused
        try:
            if await recover_lost(self.cluster, self.cache, job):
                return None
        except Refused as error:
            log.warning("%s/%s: the API server rejected a request: %s", *job.key, error)
            refused.begin_pause(error, job.now)
        refusal = refused.standing(job.now)
        await self._writer.write(job, derive_unknown_status(self._observe(job), refusal))
        wakes = [refused.until] if refusal else job.memory.corrections.times(job.now)
        return ReconcileResult(wake=min(filter(None, wakes)), result="refused" if refusal else "conflict")

    async def _pass(self, job: Subject) -> ReconcileResult:
        """Observe, decide, apply, observe what that has changed, and write."""
        before = self._observe(job)
        decision = decide(before)
        decision = await explain_queue(self.cluster, job, before.attempt.rayjob, decision)
        applied = await self._runner.apply_steps(job, decision)
        current = self.cache.job(job.key)
        if current is None:
            return ReconcileResult(result="gone")
        if not is_as_decided(current, job.body):
            return ReconcileResult(result="conflict")
        job = replace(job, body=current)
        after = self._observe(job)
        derived = derive_status(after, applied.situation, applied.refusal)
        deadlines = find_deadlines(replace(after, status=derived), applied.situation)
        written = await self._writer.write(job, derived, replaced=after.attempt.replaces_rollouts)
        # What was due by now, this pass has done or could not do: only a written status is followed by a pass at once.
        times = (decision.wake, job.memory.refused.until, *job.memory.corrections.times(job.now), *deadlines)
        wakes = [written.wake, *(at for at in times if at and at > job.now)]
        result = "conflict" if applied.conflict else "refused" if applied.refusal else written.result
        return ReconcileResult(wake=min(filter(None, wakes), default=None), result=result)

    def _observe(self, job: Subject) -> Snapshot:
        """The job, its children and its trainer's report as they are now."""
        uid = job.facts.uid
        spec = job.spec if isinstance(job.spec, ValidSpec) and not job.spec.refused else None
        observed = replace(self.cache.observed(job.key, uid), report=self.reports.newest(job.key, uid))
        attempt = observed.attempt(max(job.status.attempts, observed.newest))
        attempt = job.memory.with_times_seen(attempt, job.now)
        return Snapshot(
            facts=compare_with_attempt(job.facts, attempt, job.status, spec),
            status=job.status,
            observed=observed,
            attempt=attempt,
            now=job.now,
            timeouts=self.timeouts,
            listening=self._memory.listening,
            changed_by_others=job.memory.corrections.changed_by_others(job.now),
            refused_spec="" if job.status.finished else job.spec.refused or "",
            unreadable_spec="" if job.spec.job else job.spec.refused or "",
        )
