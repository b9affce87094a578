"""Parser of job objects: JSON of the API server -> the facts that decisions use."""

import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

from pydantic import ValidationError

from omni_operator.api.job import DiffusionRLJob, Spec
from omni_operator.api.names import PAUSE_ANNOTATION, REWARD_GROUP, ROLLOUT_GROUP
from omni_operator.api.spec.autoscaling import Autoscaling as AutoscalingSpec
from omni_operator.api.spec.pods import PodReplacement
from omni_operator.api.status import RECONCILE_ERROR, Status
from omni_operator.cluster.kinds import Body
from omni_operator.plan.pools import Pool, pools_of
from omni_operator.status.observed.evidence import shorten
from omni_operator.status.observed.job_facts import Autoscaling, JobFacts, PoolFacts, RollingUpdate, Rule
from omni_operator.status.observed.timestamps import EARLIEST, parse_timestamp
from omni_operator.status.reasons.names import Action

log = logging.getLogger(__name__)


def parse_job_facts(body: Body, job: DiffusionRLJob | None) -> JobFacts:
    """Facts from a job's metadata and spec; from its metadata alone if too little of the spec is valid."""
    meta = body["metadata"]
    facts = JobFacts(
        uid=str(meta.get("uid") or ""),
        generation=int(meta.get("generation") or 0),
        created=parse_timestamp(meta.get("creationTimestamp")) or EARLIEST,
    )
    if job is None:
        return facts
    spec = job.spec
    patient = spec.suspend_policy.mode == "CheckpointThenSuspend"
    rules = (Rule(frozenset(rule.on_reasons), Action(rule.action)) for rule in spec.failure_policy.rules)
    pools = pools_of(job)
    trainer, *others = (_pool_facts(pool, job) for pool in pools)
    scorers = {pool.group: pool for pool in others}
    rollouts = scorers.pop(ROLLOUT_GROUP, PoolFacts(group=ROLLOUT_GROUP))
    judges = scorers.pop(REWARD_GROUP, PoolFacts(group=REWARD_GROUP))
    annotations = meta.get("annotations") or {}
    paused = PAUSE_ANNOTATION if annotations.get(PAUSE_ANNOTATION, "false") != "false" else ""
    return replace(
        facts,
        suspend=spec.suspend,
        grace=timedelta(seconds=spec.suspend_policy.grace_seconds) if patient else None,
        active_deadline=_span(spec.active_deadline_seconds),
        running_deadline=_span(spec.pre_running_deadline_seconds),
        backoff_limit=spec.backoff_limit,
        disruption_limit=spec.disruption_limit,
        rules=tuple(rules),
        ttl=_span(spec.ttl_seconds_after_finished),
        retain=spec.cleanup_policy == "Retain",
        trainer=trainer,
        rollouts=rollouts,
        judges=judges,
        scorers=tuple(scorers.values()),
        least_rollout_pods=min(spec.rollout.min_replicas or 1, rollouts.pods),
        fewest_at_start=_fewest_at_start(spec),
        rolling=tuple(_rolling_update(pool, job, paused) for pool in pools if pool.live),
        total_steps=spec.trainer.total_steps,
        max_lag=spec.rollout.staleness.max_versions,
        max_age=timedelta(seconds=spec.rollout.staleness.max_seconds),
        keeps_results=spec.keeps_results,
        sends_output=spec.output is not None,
        vendor=spec.trainer.accelerator.vendor,
    )


def _fewest_at_start(spec: Spec) -> int:
    """With how many rollout pods an attempt may start; 0 if the job does not say it."""
    least = spec.rollout.min_replicas
    autoscaling = spec.rollout.autoscaling
    if not spec.rollout.separate or least is None:
        return 0
    return max(least, autoscaling.min_replicas) if autoscaling else least


def _pool_facts(pool: Pool, job: DiffusionRLJob) -> PoolFacts:
    samples = job.spec.rollout.autoscaling
    requests = job.spec.reward.model.autoscaling if job.spec.reward.model else None
    autoscaling = None
    if pool.group == ROLLOUT_GROUP and samples:
        autoscaling = _autoscaling(samples, samples.samples_per_replica)
    elif pool.group == REWARD_GROUP and requests:
        autoscaling = _autoscaling(requests, requests.requests_per_replica)
    counted = job.spec.uses_accelerators and pool.has_accelerators
    return PoolFacts(
        group=pool.group,
        pods=pool.replicas,
        accelerators=pool.accelerator.count if counted else 0,
        live=pool.live,
        autoscaling=autoscaling,
    )


def _autoscaling(given: AutoscalingSpec, share: int) -> Autoscaling:
    return Autoscaling(given.min_replicas, given.max_replicas, share, timedelta(seconds=given.stabilization_seconds))


def _rolling_update(pool: Pool, job: DiffusionRLJob, paused: str) -> RollingUpdate:
    server = job.spec.reward.model if pool.group == REWARD_GROUP else job.spec.rollout
    strategy = (server.update_strategy if server else None) or PodReplacement()
    return RollingUpdate(
        group=pool.group,
        template=pool.rolled,
        most_unavailable=strategy.max_unavailable,
        deadline=timedelta(seconds=strategy.progress_deadline_seconds),
        paused=paused,
    )


def parse_status(body: Body) -> Status:
    """The written status, without the condition `ReconcileError`, which is written separately."""
    status = body.get("status")
    values = dict(status) if isinstance(status, dict) else {}
    if isinstance(values.get("conditions"), list):
        values["conditions"] = [condition for condition in values["conditions"] if not is_reconcile_error(condition)]
    name = body["metadata"]["name"]
    return keep_valid_status(
        values, lambda error: log.warning("%s: invalid parts of the status are ignored: %s", name, error)
    )


def keep_valid_status(given: object, report: Callable[[str], None] = lambda _: None) -> Status:
    """A status without its invalid fields and list items, so that one of them does not hide that a job has ended.

    Args:
        report: called with what is invalid.
    """
    values = dict(given) if isinstance(given, dict) else {}
    try:
        return Status.model_validate(values)
    except ValidationError as error:
        report(shorten(str(error)))
        invalid = {at["loc"][:2] if len(at["loc"]) > 1 else at["loc"] for at in error.errors(include_input=False)}
    for name in list(values):
        if isinstance(values[name], list):
            values[name] = [item for index, item in enumerate(values[name]) if (name, index) not in invalid]
        elif any(at[0] == name for at in invalid):
            del values[name]
    try:
        return Status.model_validate(values)
    except ValidationError:
        return Status()


def is_reconcile_error(condition: object) -> bool:
    """Whether an item of `status.conditions` is the condition `ReconcileError`."""
    return isinstance(condition, dict) and condition.get("type") == RECONCILE_ERROR


def _span(seconds: int | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)
