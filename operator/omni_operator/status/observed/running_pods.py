"""PURE: pods and accelerators of an attempt, which keeps what it was created with when the job is edited.

Their source is the RayJob, which has what the attempt was created with as an annotation, and the RayCluster, which has
the groups as they were scaled since. The status is none: between the creation of a RayJob and the write of the status
the operator may restart, and the job may be edited.
"""

from __future__ import annotations

from dataclasses import replace

from omni_operator.api.names import ROLLOUT_GROUP, TRAINER_GROUP, is_scorer_group
from omni_operator.api.status import COUNT_LIMIT

from .job_facts import JobFacts, PoolFacts
from .observation import Observation, ObservedRayCluster, ObservedRayJob, PoolSize


def as_admitted(facts: JobFacts, observed: Observation) -> JobFacts:
    """The facts of a job whose newest attempt is in a Kueue queue, also in one that the job does not name.

    Its pods are those that the queue has admitted, with the node selectors that it has added: none is replaced, and
    autoscaling adds and removes some only where Kueue lets their number change.
    """
    rayjob = observed.rayjob(observed.newest)
    cluster = observed.cluster(observed.newest)
    if rayjob is None or not rayjob.in_queue or not facts.complete:
        return facts
    rollouts, judges = (replace(pool, live=_is_elastic(pool, rayjob, cluster)) for pool in facts.pools)
    if not any(pool.live for pool in facts.pools):  # the job names its queue
        return replace(facts, rollouts=rollouts, judges=judges)
    sizes = {size.group: size.pods for size in rayjob.pools}
    templates = {group.name: group.template for group in cluster.groups} if cluster else {}
    numbers = (pool.pods != sizes.get(pool.group, pool.pods) for pool in facts.pools if pool.autoscaling is None)
    rolls = (policy.template != templates.get(policy.group, policy.template) for policy in facts.rolling)
    return replace(facts, rollouts=rollouts, judges=judges, rolling=(), held=any(numbers) or any(rolls))


def _is_elastic(pool: PoolFacts, rayjob: ObservedRayJob, cluster: ObservedRayCluster | None) -> bool:
    """Whether Kueue lets the number of autoscaled pods change. Without its gate, it would not count those added."""
    group = cluster.group(pool.group) if cluster else None
    return pool.autoscaling is not None and bool(rayjob.requested) and group is not None and group.gated


def as_running(facts: JobFacts, observed: Observation, attempt: int) -> JobFacts:
    """The facts with the pods of an attempt instead of the spec's pods.

    Where the attempt follows `replicas`, the number of pods is the spec's, which the status calls desired. Without a
    RayJob, or without its annotation, everything except autoscaled numbers is the spec's.
    """
    rayjob = observed.rayjob(attempt)
    cluster = observed.cluster(attempt)
    sizes = {size.group: size for size in rayjob.pools} if rayjob else {}
    if not sizes:
        rollouts, judges = (_as_scaled(pool, cluster) for pool in facts.pools)
        return replace(facts, rollouts=rollouts, judges=judges)
    trainer = sizes[TRAINER_GROUP]
    rollouts, judges = (_as_created(pool, sizes.get(pool.group), cluster) for pool in facts.pools)
    scorers = tuple(
        PoolFacts(group=size.group, pods=size.pods, accelerators=size.accelerators)
        for size in sizes.values()
        if is_scorer_group(size.group)
    )
    least = sizes[ROLLOUT_GROUP].least if ROLLOUT_GROUP in sizes else 0
    return replace(
        facts,
        trainer=replace(facts.trainer, pods=trainer.pods, accelerators=trainer.accelerators),
        rollouts=rollouts,
        judges=judges,
        scorers=scorers,
        least_rollout_pods=min(least, rollouts.pods),
    )


def count_accelerators(facts: JobFacts, cluster: ObservedRayCluster | None) -> int:
    """Number of accelerators of all pods that an attempt's RayCluster requests.

    Args:
        facts: returned by `as_running`.
    """
    total = facts.trainer.pods * facts.trainer.accelerators
    for pool in facts.pools:
        group = cluster.group(pool.group) if cluster else None
        total += (group.replicas if group else pool.pods) * pool.accelerators
    total += sum(pool.pods * pool.accelerators for pool in facts.scorers)
    return min(total, COUNT_LIMIT)


def _as_created(pool: PoolFacts, size: PoolSize | None, cluster: ObservedRayCluster | None) -> PoolFacts:
    if size is None:
        return replace(pool, pods=0, accelerators=0)
    group = cluster.group(pool.group) if cluster else None
    follows = pool.live and pool.autoscaling is None
    pods = pool.pods if follows else group.replicas if group else size.pods
    return replace(pool, pods=pods, accelerators=size.accelerators)


def _as_scaled(pool: PoolFacts, cluster: ObservedRayCluster | None) -> PoolFacts:
    group = cluster.group(pool.group) if cluster else None
    if pool.autoscaling is None or not pool.live or group is None:
        return pool
    return replace(pool, pods=group.replicas)
