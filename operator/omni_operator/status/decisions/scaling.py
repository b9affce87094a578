"""PURE: how many rollout and reward pods a running attempt has, and which of them leave.

A number that is the spec's, or an autoscaler's, counts for KubeRay only between the `minReplicas` and `maxReplicas` of
its worker group, so limits that another program has set are put right where they do not allow it.

Kueue reserves quota for the numbers of pods in the RayJob, and KubeRay creates those in the RayCluster, so the operator
changes both. Kueue keeps new pods from being scheduled until it has quota for them.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from omni_operator.api.names import POD_LIMITS, REWARD_GROUP, ROLLOUT_GROUP
from omni_operator.status.condition_value import ConditionValue, Table
from omni_operator.status.observed.job_facts import Autoscaling, JobFacts, PoolFacts
from omni_operator.status.observed.observation import Attempt, ObservedPod, PodGroup
from omni_operator.status.observed.queue_history import QueueHistory

from .situation import GroupChange, ReserveQuota, ScaleGroup


@dataclass(frozen=True, slots=True)
class Queue:
    """What waits for the pods of a group, in the words of conditions.

    Attributes:
        condition: type of the condition.
        field: field of the job that determines the number of pods.
        things, wait: as in `96 samples wait for generation`.
    """

    condition: str
    field: str
    things: str
    wait: str


QUEUES = {
    ROLLOUT_GROUP: Queue("RolloutsScaled", "spec.rollout.autoscaling", "samples", "wait for generation"),
    REWARD_GROUP: Queue("RewardsScaled", "spec.reward.model.autoscaling", "requests", "wait for the judge"),
}


def scale(
    facts: JobFacts, attempt: Attempt, now: datetime, *, patience: timedelta | None = None
) -> tuple[ScaleGroup, ...]:
    """Changes that give an attempt as many rollout and reward pods as the spec, or its autoscaling, says.

    Args:
        patience: for an attempt that has not started: how long rollout pods may be without a node before it starts
            without them. None: the attempt runs.
    """
    cluster = attempt.cluster
    if cluster is None or cluster.deleting:
        return ()
    changes = []
    for pool in (facts.trainer, *facts.pools):
        group = attempt.groups.get(pool.group)
        if group is None:
            continue
        # Its queue has admitted the pods that an attempt starts with.
        admitted = not pool.live or (group.gated and patience is not None)
        if admitted:
            size = attempt.sizes.get(pool.group)
            fixed = size is not None and size.pods == group.replicas
            wanted = group.replicas if fixed else None
            limits = group.replicas, group.replicas
        else:
            wanted = _find_number(pool, group, facts.fewest_at_start, attempt, now, patience)
            limits = POD_LIMITS
        kept = wanted is None or group.least <= wanted <= group.most
        if wanted is None or (kept and wanted == group.replicas):
            continue
        fewer = wanted < max(group.replicas, group.least)
        removed = leaving_pods(attempt.group_pods[group.name], wanted) if fewer else ()
        # Limits that another program has set may not allow the number.
        changed = None if kept else limits
        change = GroupChange(group.index, group.name, group.replicas, wanted, removed, changed)
        changes.append(ScaleGroup(cluster, change))
    return tuple(changes)


def follow_pods(
    facts: JobFacts, attempt: Attempt, changes: tuple[ScaleGroup, ...]
) -> tuple[ScaleGroup | ReserveQuota, ...]:
    """Changes of worker groups and of the quota, which is requested before pods are added and returned when the
    removed ones are gone.
    """
    rayjob = attempt.rayjob
    cluster = attempt.cluster
    if rayjob is None or cluster is None or cluster.deleting:
        return changes
    wanted = {group.name: group.replicas for group in cluster.groups if group.gated}
    wanted |= {step.change.group: step.change.new for step in changes}
    scaled = {pool.group for pool in facts.pools if pool.live}
    more: list[ReserveQuota] = []
    fewer: list[ReserveQuota] = []
    for request in rayjob.requested:
        if request.group not in scaled & wanted.keys():
            continue
        step = ReserveQuota(rayjob, request, wanted[request.group])
        if step.new > request.pods:
            more.append(step)
        elif len(attempt.group_pods[request.group]) <= step.new < request.pods:
            fewer.append(step)
    return (*more, *changes, *fewer)


def _find_number(
    pool: PoolFacts, group: PodGroup, fewest: int, attempt: Attempt, now: datetime, patience: timedelta | None
) -> int | None:
    """How many pods a group should have; None: it stays as it is."""
    wanted = pool.pods
    current = group.replicas
    if pool.autoscaling is not None:
        wanted = recommend(pool.autoscaling, attempt.queues.get(pool.group), current, now)
        if wanted > current >= pool.autoscaling.least and find_limit(attempt, pool.group) is not None:
            return None  # others would not start either
    if patience is not None and pool.group == ROLLOUT_GROUP and fewest:
        wanted = _number_at_start(fewest, attempt, min(current, wanted), now - patience)
    return wanted


def _number_at_start(fewest: int, attempt: Attempt, asked: int, before: datetime) -> int:
    """How many rollout pods an attempt that has not started asks for.

    KubeRay starts the training program once all pods that it asks for are ready. So those that have found no node, or
    that a quota refuses, are not asked for until it runs, if the others are enough.

    Args:
        before: pods that are not older may still find a node, and a cluster that is not older its quota.
    """
    pods = [pod for pod in attempt.group_pods[ROLLOUT_GROUP] if not pod.deleting]
    placed = sum(not pod.unschedulable for pod in pods)
    size = attempt.sizes.get(ROLLOUT_GROUP)
    least = max(fewest, size.least if size else 1)  # the trainer keeps what it was created with
    late = any(pod.unschedulable and pod.created <= before for pod in pods)
    cluster = attempt.cluster
    refused = cluster is not None and cluster.created <= before and cluster.lacks_quota
    return placed if (late or refused) and least <= placed < asked else asked


def recommend(policy: Autoscaling, queue: QueueHistory | None, current: int, now: datetime) -> int:
    """How many pods there should be.

    More as soon as the last report needs them, fewer when no report of a whole window needed as many. So after pods
    were added, none is removed for a window, and a trainer whose reports are missing keeps what it has.
    """
    kept = min(max(current, policy.least), policy.most)
    if queue is None:
        return kept
    if (needed := policy.pods_for(queue.last)) > kept:
        return needed
    begin = now - policy.window
    if queue.since > begin or queue.at <= begin:
        return kept
    return min(kept, policy.pods_for(queue.most(begin)))


def find_limit(attempt: Attempt, group: str) -> tuple[str, str] | None:
    """Reason and message of the limit that keeps pods of a group from starting: a quota, or no node with room.

    A quota refuses the pods of all groups: KubeRay creates none after the first that is refused.
    """
    if attempt.cluster and attempt.cluster.lacks_quota:
        return "QuotaExceeded", attempt.cluster.failure
    waiting = next((pod for pod in attempt.group_pods[group] if pod.unschedulable), None)
    return ("Unschedulable", f"pod {waiting.name}: {waiting.unschedulable}") if waiting else None


def review_scaling(facts: JobFacts, attempt: Attempt, now: datetime) -> Table:
    """The conditions `RolloutsScaled` and `RewardsScaled`; `facts` come from `as_running`."""
    return {QUEUES[pool.group].condition: _review_pool(pool, attempt, now) for pool in facts.pools}


def _review_pool(pool: PoolFacts, attempt: Attempt, now: datetime) -> ConditionValue:
    policy = pool.autoscaling
    queue = attempt.queues.get(pool.group)
    text = QUEUES[pool.group]
    if policy is None:
        return ConditionValue("Unknown", "NotAutoscaled", f"{text.field} is not given")
    if not pool.live:
        return ConditionValue(
            "False", "InQueue", "the queue has admitted the pods of the attempt; no others can be added"
        )
    if limit := find_limit(attempt, pool.group):
        return ConditionValue("False", *limit)
    if queue is None:
        return ConditionValue(
            "Unknown", "NoReports", f"the trainer has not reported how many {text.things} {text.wait}"
        )
    if queue.most(now - policy.window) > policy.share * policy.most:
        backlog = f"more than {policy.share} {text.things} for each of {policy.most} {pool.group} pods {text.wait}"
        return ConditionValue("False", "AtMaximum", f"{backlog}; {text.field}.maxReplicas is {policy.most}")
    return ConditionValue("True", "WithinLimits", f"{pool.pods} {pool.group} pods")


def leaving_pods(pods: Iterable[ObservedPod], kept: int) -> tuple[str, ...]:
    """Names of the pods that leave so that `kept` stay, and of those that are being deleted.

    Those without a node leave first, then those that are not ready, then the newest: they have done the least. KubeRay
    counts a pod that is being deleted as one that runs unless it is named, and would delete another one for it.
    """
    candidates = list(pods)
    staying = sorted(
        (pod for pod in candidates if not pod.deleting),
        key=lambda pod: (bool(pod.unschedulable), not pod.ready, pod.created, pod.name),
    )
    return tuple(sorted([*(pod.name for pod in candidates if pod.deleting), *(pod.name for pod in staying[kept:])]))
