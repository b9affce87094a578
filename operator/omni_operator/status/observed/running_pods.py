"""PURE: what an attempt keeps of the spec that it was created from: its pods, their templates and their numbers."""

from dataclasses import replace
from typing import Protocol

from omni_operator.api.names import ROLLOUT_GROUP, TRAINER_GROUP, is_scorer_group
from omni_operator.api.status import Status
from omni_operator.status.condition_value import CHANGED_BY_OTHERS, NEXT_ATTEMPT

from .job_facts import JobFacts, PoolFacts, RollingUpdate
from .observation import Attempt, ObservedRayJob

UNCOMPARED = (CHANGED_BY_OTHERS, "InvalidSpec")  # reasons of `Updated` that say nothing of how attempt and spec differ


class RenderedSpec(Protocol):
    """A spec from which attempts may be created."""

    def has_rendered(self, rayjob: ObservedRayJob) -> bool:
        """Whether an attempt differs from the spec only in what may change while it runs."""

    def makes(self, rayjob: ObservedRayJob) -> bool:
        """The same, also of an attempt that another version of the operator has rendered."""


def compare_with_attempt(facts: JobFacts, attempt: Attempt, status: Status, spec: RenderedSpec | None) -> JobFacts:
    """The facts of a job, with what its newest attempt keeps until its end.

    Args:
        status: the last written status.
        spec: None: the spec is refused, and no attempt gets anything from it.
    """
    rayjob = attempt.rayjob
    if _other_templates(facts, attempt) and not (spec and rayjob and spec.has_rendered(rayjob)):
        kept = (replace(policy, template=_template(attempt, policy)) for policy in facts.rolling)
        facts = replace(facts, rolling=tuple(kept), held=rayjob is not None)
    if rayjob and rayjob.in_queue and facts.complete:
        facts = _as_admitted(facts, attempt, rayjob)
    return replace(facts, outdated=_is_outdated(facts, attempt, status, spec)) if spec else facts


def _template(attempt: Attempt, policy: RollingUpdate) -> str:
    """The template of the attempt's pods; the spec's where there are none."""
    group = attempt.groups.get(policy.group)
    return group.template if group and group.template else policy.template


def _other_templates(facts: JobFacts, attempt: Attempt) -> list[RollingUpdate]:
    """The groups whose pods are made from other templates than the spec's."""
    return [policy for policy in facts.rolling if _template(attempt, policy) != policy.template]


def _as_admitted(facts: JobFacts, attempt: Attempt, rayjob: ObservedRayJob) -> JobFacts:
    """The facts of a job whose newest attempt is in a Kueue queue, also in one that the job does not name.

    Its pods are those that the queue has admitted, with the node selectors that it has added: none is replaced, and
    autoscaling adds and removes some only where Kueue lets their number change.
    """
    rollouts, judges = (replace(pool, live=_is_elastic(pool, attempt, rayjob)) for pool in facts.pools)
    admitted = replace(facts, rollouts=rollouts, judges=judges)
    if not any(pool.live for pool in facts.pools):  # the job names its queue
        return admitted
    fixed = ((pool, attempt.sizes.get(pool.group)) for pool in facts.pools if pool.autoscaling is None)
    differs = any(size and size.pods != pool.pods for pool, size in fixed)
    rolled = ((policy, attempt.groups.get(policy.group)) for policy in facts.rolling)
    differs = differs or any(group and group.template != policy.template for policy, group in rolled)
    return replace(admitted, rolling=(), held=differs)


def _is_elastic(pool: PoolFacts, attempt: Attempt, rayjob: ObservedRayJob) -> bool:
    """Whether Kueue lets the number of autoscaled pods change. Without its gate, it would not count those added."""
    group = attempt.groups.get(pool.group)
    return pool.autoscaling is not None and bool(rayjob.requested) and group is not None and group.gated


def _is_outdated(facts: JobFacts, attempt: Attempt, status: Status, spec: RenderedSpec) -> bool:
    """Whether the attempt differs from the spec in fields that cannot change while it runs.

    Before the trainer runs, no pods are replaced, so nothing can change. Once it runs, the previous result holds until
    the spec changes. A spec that was invalid is valid again, with the same generation, when the operator or its policy
    has changed.
    """
    rayjob = attempt.rayjob
    updated = status.condition("Updated")
    same_spec = status.observed_generation == facts.generation and not (updated and updated.reason in UNCOMPARED)
    if rayjob is None or (rayjob.runs and rayjob.attempt == status.attempts and same_spec):
        return updated is not None and updated.reason == NEXT_ATTEMPT
    rolled = any(not policy.paused for policy in _other_templates(facts, attempt))
    return bool(rayjob.digest) and ((not rayjob.runs and (facts.held or rolled)) or not spec.makes(rayjob))


def as_running(facts: JobFacts, attempt: Attempt) -> JobFacts:
    """The facts with the pods of an attempt instead of the spec's pods.

    Where the attempt follows `replicas`, the number of pods is the spec's, which the status calls desired. Without a
    RayJob, or without its annotation, everything except autoscaled numbers is the spec's.
    """
    rollouts, judges = (_pool_as_running(pool, attempt) for pool in facts.pools)
    trainer = attempt.sizes.get(TRAINER_GROUP)
    if attempt.rayjob is None or trainer is None:
        return replace(facts, rollouts=rollouts, judges=judges)
    scorers = tuple(
        PoolFacts(group=size.group, pods=size.pods, accelerators=size.accelerators)
        for size in attempt.rayjob.pools
        if is_scorer_group(size.group)
    )
    rollout = attempt.sizes.get(ROLLOUT_GROUP)
    return replace(
        facts,
        trainer=replace(facts.trainer, pods=trainer.pods, accelerators=trainer.accelerators),
        rollouts=rollouts,
        judges=judges,
        scorers=scorers,
        least_rollout_pods=min(rollout.least, rollouts.pods) if rollout else 0,
    )


def _pool_as_running(pool: PoolFacts, attempt: Attempt) -> PoolFacts:
    group = attempt.groups.get(pool.group)
    if not (attempt.rayjob and attempt.rayjob.pools):
        return replace(pool, pods=group.replicas) if group and pool.live and pool.autoscaling else pool
    size = attempt.sizes.get(pool.group)
    if size is None:
        return replace(pool, pods=0, accelerators=0)
    follows = pool.live and pool.autoscaling is None
    pods = pool.pods if follows else group.replicas if group else size.pods
    return replace(pool, pods=pods, accelerators=size.accelerators)
