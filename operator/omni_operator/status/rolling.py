"""PURE: replacement of the rollout pods of a running attempt after a change of what they are made of.

All state is in the RayCluster, so a pass needs no memory: the group's template has a digest, which its pods get as a
label; annotations have the template before the change, since when pods are replaced, and the one that was given up.

Invariants:
- a pod of the group's template is never replaced;
- no pod that serves is replaced unless at most `most_unavailable` pods do not serve afterwards;
- at most `most_unavailable` pods are being replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from omni_operator.api.names import ROLLOUT_GROUP

from . import evidence
from .conditions import ConditionValue, false_because
from .job_facts import JobFacts, RollingUpdate
from .observation import Observation, ObservedPod, ObservedRayCluster, RolloutGroup
from .situation import FinishReplacement, GiveUpTemplate, ReplacementStep, ReplacePods, StartReplacement

ROLLING_REASONS = ("RollingUpdate", "RollingUpdatePaused", "RolledBack")


@dataclass(frozen=True, slots=True)
class RolloutPod:
    """A rollout pod that is not being deleted.

    Attributes:
        template: as in `RolloutGroup`.
        version: lowest weight version of its replicas; None if it is not ready, or none of them serves.
    """

    name: str
    created: datetime
    template: str
    version: int | None


@dataclass(frozen=True, slots=True)
class Pods:
    """The rollout pods of a group, compared with its template.

    Attributes:
        outdated: pods of another template, in the order in which they are replaced.
        waited_for: number of pods that are missing, or have the template and do not serve yet.
        current: number of pods that have the template and serve.
    """

    outdated: tuple[RolloutPod, ...]
    waited_for: int
    current: int


def hold_template(facts: JobFacts, observed: Observation, unchanged: Callable[[int], bool]) -> JobFacts:
    """The facts with the template that the running attempt has, if it must not get that of the spec.

    Args:
        unchanged: whether the spec differs from that of an attempt in nothing but what is replaced.
    """
    cluster = observed.cluster(observed.newest)
    if facts.rolling is None or cluster is None or cluster.rollout_group is None:
        return facts
    held = cluster.rollout_group.template
    if held and (held == facts.rolling.template or unchanged(observed.newest)):
        return facts
    return replace(facts, rolling=replace(facts.rolling, template=held))


def find_step(
    facts: JobFacts, observed: Observation, attempt: int, now: datetime
) -> tuple[ReplacementStep | None, datetime | None]:
    """The next step of a running attempt, and the time at which its deadline passes."""
    cluster = observed.cluster(attempt)
    if facts.rolling is None or cluster is None or cluster.deleting or cluster.rollout_group is None:
        return None, None
    pods = _rollout_pods(observed, attempt, cluster.rollout_group)
    if pods is None or not cluster.rollout_group.template:
        return None, None
    step = next_step(cluster, cluster.rollout_group, pods, facts.rolling, now)
    if isinstance(step, ReplacePods):
        leaving = {
            pod.name for pod in observed.pods_of(attempt) if pod.deleting or pod.name in cluster.rollout_group.removed
        }
        step = replace(step, removed=tuple(sorted({*step.removed, *leaving})))
    if isinstance(step, GiveUpTemplate):
        step = replace(step, text=_why_not_ready(cluster, observed.pods_of(attempt), facts.rolling))
    since = cluster.rollout_group.replacing
    return step, since + facts.rolling.deadline if since else None


def next_step(
    cluster: ObservedRayCluster, group: RolloutGroup, pods: Sequence[RolloutPod], policy: RollingUpdate, now: datetime
) -> ReplacementStep | None:
    """The next step towards pods that all have the template of `policy`; None: wait, or there is nothing to do."""
    if policy.paused:
        return None
    if policy.template not in (group.template, group.refused):
        return StartReplacement(cluster)
    found = compare(group, pods)
    if found.waited_for and group.replacing and now >= group.replacing + policy.deadline:
        return GiveUpTemplate(cluster)
    if not found.outdated:
        return FinishReplacement(cluster) if group.replacing and not found.waited_for else None
    # Those that do not serve come first, so pods that serve are replaced only as far as no more than these are missing.
    chosen = found.outdated[: max(0, policy.most_unavailable - found.waited_for)]
    return ReplacePods(cluster, tuple(sorted(pod.name for pod in chosen))) if chosen else None


def compare(group: RolloutGroup, pods: Sequence[RolloutPod]) -> Pods:
    """Compare pods with the template of their group.

    Those without a replica that serves are replaced first, then those with the lowest version, then the oldest.
    """
    outdated = sorted(
        (pod for pod in pods if pod.template != group.template),
        key=lambda pod: (pod.version is not None, pod.version or 0, pod.created, pod.name),
    )
    current = sum(pod.template == group.template and pod.version is not None for pod in pods)
    missing = max(0, group.replicas - len(pods))
    waited_for = missing + len(pods) - len(outdated) - current
    return Pods(tuple(outdated), waited_for, current)


def review_rolling(facts: JobFacts, observed: Observation, attempt: int) -> ConditionValue | None:
    """The condition `Updated` while pods are replaced, or after that was given up; None otherwise."""
    cluster, policy = observed.cluster(attempt), facts.rolling
    if policy is None or cluster is None or cluster.rollout_group is None or not policy.template:
        return None
    group = cluster.rollout_group
    if policy.template != group.template and policy.template == group.refused:
        return false_because("RolledBack", group.refusal)
    known = _rollout_pods(observed, attempt, group)
    outdated = _live(observed.pods_of(attempt), group, outdated=True)
    if policy.template == group.template and not group.replacing and not outdated:
        return None
    current = compare(group, known).current if known is not None and policy.template == group.template else 0
    text = f"{current} of {group.replicas} rollout pods have the current spec and serve"
    if policy.paused:
        return false_because("RollingUpdatePaused", f"{text}; the annotation {policy.paused} pauses the others")
    if known is None:
        text += "; waiting for the trainer's report of its replicas"
    return false_because("RollingUpdate", text)


def count_updated(facts: JobFacts, observed: Observation, attempt: int) -> int:
    """Number of rollout pods with the current spec, whether or not they serve."""
    pods = [pod for pod in observed.pods_of(attempt) if pod.group == ROLLOUT_GROUP and not pod.deleting]
    wanted = facts.rolling.template if facts.rolling else ""
    return sum(pod.template == wanted for pod in pods) if wanted else len(pods)


def _rollout_pods(observed: Observation, attempt: int, group: RolloutGroup) -> list[RolloutPod] | None:
    """The pods of a group that are not being deleted; None if the trainer has not reported its replicas."""
    report = observed.report_of(attempt)
    if report is None or report.replicas is None:
        return None
    return [
        RolloutPod(pod.name, pod.created, pod.template, report.replicas.get(pod.address) if pod.ready else None)
        for pod in _live(observed.pods_of(attempt), group)
    ]


def _live(pods: Iterable[ObservedPod], group: RolloutGroup, *, outdated: bool = False) -> list[ObservedPod]:
    """The rollout pods that stay, or those of them with another template than the group's."""
    found = [pod for pod in pods if pod.group == ROLLOUT_GROUP and not pod.deleting and pod.name not in group.removed]
    return [pod for pod in found if pod.template != group.template] if outdated else found


def _why_not_ready(cluster: ObservedRayCluster, pods: Iterable[ObservedPod], policy: RollingUpdate) -> str:
    """Why pods were given up, as far as pods or KubeRay say it."""
    assert cluster.rollout_group is not None
    seconds = int(policy.deadline.total_seconds())
    text = f"rollout pods with the current spec did not serve within {seconds} s "
    text += "(spec.rollout.updateStrategy.progressDeadlineSeconds), and are replaced by pods of the spec before"
    for pod in _live(pods, cluster.rollout_group):
        if pod.template != cluster.rollout_group.template:
            continue
        if pod.unschedulable:
            return f"{text}: pod {pod.name}: {pod.unschedulable}"
        for container in pod.waiting:
            return f"{text}: pod {pod.name}: {container.reason}: {container.message}"
        for ended in pod.ended:
            return f"{text}: pod {pod.name}: {ended.reason}, exit code {ended.exit_code}"
    return evidence.shorten(f"{text}: {cluster.failure}" if cluster.failure else text)
