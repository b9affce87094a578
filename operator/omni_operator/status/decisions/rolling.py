"""PURE: rolling replacement of the rollout and reward pods of a running attempt after their template has changed.

All state is in the RayCluster, so a pass needs no memory. Pods have the digest of their group's template as a label.
Annotations hold the template before the change, when the replacement began, and the template that was given up.

Invariants, for each group:
- a pod with the group's current template is never replaced;
- a serving pod is replaced only if at most `most_unavailable` pods do not serve afterwards;
- at most `most_unavailable` pods are being replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from omni_operator.api.names import REWARD_GROUP, ROLLOUT_GROUP
from omni_operator.status.condition_value import ConditionValue, false_because
from omni_operator.status.observed import evidence
from omni_operator.status.observed.job_facts import JobFacts, RollingUpdate
from omni_operator.status.observed.observation import (
    Observation,
    ObservedPod,
    ObservedRayCluster,
    ObservedRayJob,
    PodGroup,
)

from .situation import (
    FinishReplacement,
    GiveUpTemplate,
    ReplacementStep,
    ReplacePods,
    StartReplacement,
)

ROLLING_REASONS = ("RollingUpdate", "RollingUpdatePaused", "RolledBack")  # the first of several groups is shown
FIELDS = {ROLLOUT_GROUP: "spec.rollout", REWARD_GROUP: "spec.reward.model"}


@dataclass(frozen=True, slots=True)
class ServingPod:
    """A pod of a group that is not being deleted.

    Attributes:
        template: as in `PodGroup`.
        version: lowest weight version of its replicas, 0 for a judge's; None if it is not ready, or none of them
            serves.
        scheduled: whether it has a node, or may still get one without a change of the cluster.
    """

    name: str
    created: datetime
    template: str
    version: int | None
    scheduled: bool = True


@dataclass(frozen=True, slots=True)
class Pods:
    """The pods of a group, compared with its template.

    Attributes:
        outdated: pods of another template, in the order in which they are replaced.
        waited_for: number of pods that are missing, or have the template and do not serve yet.
        current: number of pods that have the template and serve.
    """

    outdated: tuple[ServingPod, ...]
    waited_for: int
    current: int


def hold_templates(
    facts: JobFacts, observed: Observation, unchanged: Callable[[ObservedRayJob], bool] | None
) -> JobFacts:
    """The facts with the running attempt's templates, where the attempt must not get the spec's templates.

    Args:
        unchanged: whether the spec differs from an attempt's spec only in the templates of replaceable pods. None: the
            spec is refused, and no attempt gets anything from it.
    """
    cluster = observed.cluster(observed.newest)
    rayjob = observed.rayjob(observed.newest)
    if cluster is None:
        return facts
    held = {group.name: group.template for group in cluster.groups if group.template}
    differ = any(held.get(policy.group, policy.template) != policy.template for policy in facts.rolling)
    if not differ or (unchanged and rayjob and unchanged(rayjob)):
        return facts
    kept = (replace(policy, template=held.get(policy.group, policy.template)) for policy in facts.rolling)
    return replace(facts, rolling=tuple(kept), held=rayjob is not None)


def has_other_templates(facts: JobFacts, observed: Observation) -> bool:
    """Whether pods of the newest attempt are made from other templates than the spec's, and are to be replaced."""
    cluster = observed.cluster(observed.newest)
    held = {group.name: group.template for group in cluster.groups if group.template} if cluster else {}
    rolled = (policy for policy in facts.rolling if not policy.paused)
    return any(held.get(policy.group, policy.template) != policy.template for policy in rolled)


def find_steps(
    facts: JobFacts, observed: Observation, attempt: int, now: datetime
) -> tuple[tuple[ReplacementStep, ...], datetime | None]:
    """The next steps of a running attempt, at most one for each group, and the next time at which a deadline passes."""
    cluster = observed.cluster(attempt)
    if cluster is None or cluster.deleting:
        return (), None
    steps = [_find_step(cluster, policy, observed, now) for policy in facts.rolling]
    # One that has passed is of a group that is paused, or of which new pods serve.
    wake = min((late for _, deadlines in steps for late in deadlines if late > now), default=None)
    return tuple(step for step, _ in steps if step), wake


def _find_step(
    cluster: ObservedRayCluster, policy: RollingUpdate, observed: Observation, now: datetime
) -> tuple[ReplacementStep | None, list[datetime]]:
    """The next step of a group, and times at which a deadline passes."""
    group = cluster.group(policy.group)
    pods = observed.pods_of(cluster.attempt)
    if group is None or not group.template:
        return None, []
    known = _known_pods(observed, cluster.attempt, group)
    if known is None:
        return None, []
    step = next_step(cluster, group, known, policy, _known_at(observed, cluster.attempt, group, known, now))
    if isinstance(step, ReplacePods):
        leaving = {pod.name for pod in pods if pod.group == group.name and (pod.deleting or pod.name in group.removed)}
        step = replace(step, removed=tuple(sorted({*step.removed, *leaving})))
    if isinstance(step, GiveUpTemplate):
        step = replace(step, text=_why_not_ready(cluster, group, pods, policy))
    if not group.replacing:
        return step, []
    return step, [group.replacing + policy.deadline, *_deadlines(group, known, policy)]


def next_step(
    cluster: ObservedRayCluster, group: PodGroup, pods: Sequence[ServingPod], policy: RollingUpdate, now: datetime
) -> ReplacementStep | None:
    """The next step towards pods that all have the template of `policy`; None: wait, or there is nothing to do.

    Args:
        now: the time for which it is known which pods serve.
    """
    if policy.paused:
        return None
    if policy.template not in (group.template, group.refused):
        return StartReplacement(cluster, group)
    comparison = compare(group, pods)
    late = comparison.waited_for and group.replacing and now >= group.replacing + policy.deadline
    # Where pods of the template serve, it is not the template's fault that a pod is missing or finds no node: a node
    # was lost, or more pods were asked for than there is room for.
    if late and (not comparison.current or any(now >= deadline for deadline in _deadlines(group, pods, policy))):
        return GiveUpTemplate(cluster, group)
    if not comparison.outdated:
        return FinishReplacement(cluster, group) if group.replacing and not comparison.waited_for else None
    # Those that do not serve come first, so pods that serve are replaced only as far as no more than these are missing.
    chosen = comparison.outdated[: max(0, policy.most_unavailable - comparison.waited_for)]
    return ReplacePods(cluster, group, tuple(sorted(pod.name for pod in chosen))) if chosen else None


def compare(group: PodGroup, pods: Sequence[ServingPod]) -> Pods:
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


def _deadlines(group: PodGroup, pods: Iterable[ServingPod], policy: RollingUpdate) -> list[datetime]:
    """When the time of each pod passes that has the template and a node, and does not serve."""
    waiting = (pod for pod in pods if pod.template == group.template and pod.version is None and pod.scheduled)
    return [pod.created + policy.deadline for pod in waiting]


def review_rolling(facts: JobFacts, observed: Observation, attempt: int) -> ConditionValue | None:
    """The condition `Updated` while pods are replaced, or after that was given up; None otherwise."""
    cluster = observed.cluster(attempt)
    if cluster is None:
        return None
    reviews = [value for policy in facts.rolling if (value := _review_group(cluster, policy, observed))]
    if not reviews:
        return None
    reason = min((value.reason for value in reviews), key=ROLLING_REASONS.index)
    return false_because(reason, evidence.shorten("; ".join(value.message for value in reviews)))


def _review_group(cluster: ObservedRayCluster, policy: RollingUpdate, observed: Observation) -> ConditionValue | None:
    """What `review_rolling` says of one group."""
    group = cluster.group(policy.group)
    pods = observed.pods_of(cluster.attempt)
    if group is None or not group.template:
        return None
    if policy.template != group.template and policy.template == group.refused:
        return false_because("RolledBack", group.refusal)
    known = _known_pods(observed, cluster.attempt, group)
    outdated = _live(pods, group, outdated=True)
    if policy.template == group.template and not group.replacing and not outdated:
        return None
    comparison = compare(group, known) if known is not None and policy.template == group.template else None
    current = comparison.current if comparison else 0
    text = f"{current} of {group.replicas} {group.name} pods have the current spec and serve"
    if comparison and comparison.waited_for:
        text += f", {comparison.waited_for} missing or not ready"
    if policy.paused:
        return false_because("RollingUpdatePaused", f"{text}; the annotation {policy.paused} pauses the others")
    if known is None:
        text += "; waiting for the trainer's report of its replicas"
    return false_because("RollingUpdate", text)


def count_updated(facts: JobFacts, observed: Observation, attempt: int, group: str) -> int:
    """Number of pods of a group with the current spec, whether or not they serve."""
    pods = [pod for pod in observed.pods_of(attempt) if pod.group == group and not pod.deleting]
    wanted = next((policy.template for policy in facts.rolling if policy.group == group), "")
    return sum(pod.template == wanted for pod in pods) if wanted else len(pods)


def replaces_missing(observed: Observation, attempt: int) -> bool:
    """Whether rollout pods are missing only because they are being replaced, also where that is paused or given up.

    Every other pod is ready, or a new one that starts. A place without a pod counts as one of the replacement.
    """
    cluster = observed.cluster(attempt)
    group = cluster.group(ROLLOUT_GROUP) if cluster else None
    if group is None or not group.template or not group.removed:
        return False
    pods = [pod for pod in observed.pods_of(attempt) if pod.group == group.name]
    if not group.replacing and all(pod.template == group.template for pod in pods):
        return False  # the last replacement is over
    others = [pod for pod in pods if pod.name not in group.removed]
    return all(not pod.deleting and (pod.ready or pod.template == group.template) for pod in others)


def _known_pods(observed: Observation, attempt: int, group: PodGroup) -> list[ServingPod] | None:
    """The pods of a group that are not being deleted; None if the trainer has not reported its replicas."""
    report = observed.report_of(attempt)
    serving = report.serving(group.name) if report else None
    if serving is None:
        return None
    return [
        ServingPod(
            pod.name, pod.created, pod.template, serving.get(pod.address) if pod.ready else None, not pod.unschedulable
        )
        for pod in _live(observed.pods_of(attempt), group)
    ]


def _known_at(
    observed: Observation, attempt: int, group: PodGroup, known: Iterable[ServingPod], now: datetime
) -> datetime:
    """The time for which it is known which pods serve: of one that is ready, only the trainer's report says it."""
    ready = {pod.name for pod in _live(observed.pods_of(attempt), group) if pod.ready}
    report = observed.report_of(attempt)
    unsaid = any(pod.name in ready and pod.version is None for pod in known)
    return min(now, report.at) if report and unsaid else now


def _live(pods: Iterable[ObservedPod], group: PodGroup, *, outdated: bool = False) -> list[ObservedPod]:
    """The pods of a group that are not being deleted; if `outdated`, only pods with an outdated template."""
    live = [pod for pod in pods if pod.group == group.name and not pod.deleting and pod.name not in group.removed]
    return [pod for pod in live if pod.template != group.template] if outdated else live


def _why_not_ready(
    cluster: ObservedRayCluster, group: PodGroup, pods: Iterable[ObservedPod], policy: RollingUpdate
) -> str:
    """Why pods were given up, as far as pods or KubeRay say it."""
    seconds = int(policy.deadline.total_seconds())
    text = f"{group.name} pods with the current spec did not serve within {seconds} s "
    text += (
        f"({FIELDS[group.name]}.updateStrategy.progressDeadlineSeconds), and are replaced by pods of the spec before"
    )
    for pod in _live(pods, group):
        if pod.template != group.template:
            continue
        if pod.unschedulable:
            return f"{text}: pod {pod.name}: {pod.unschedulable}"
        for container in pod.waiting:
            return f"{text}: pod {pod.name}: {container.reason}: {container.message}"
        for ended in pod.ended:
            return f"{text}: pod {pod.name}: {ended.reason}, exit code {ended.exit_code}"
    return evidence.shorten(f"{text}: {cluster.failure}" if cluster.failure else text)
