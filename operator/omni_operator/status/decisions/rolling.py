"""PURE: rolling replacement of the rollout and reward pods of a running attempt after their template has changed.

All state is in the RayCluster, so a pass needs no memory. Pods have the digest of their group's template as a label.
Annotations hold the template before the change, when the replacement began, and the template that was given up.

Invariants, for each group:
- a pod with the group's current template is never replaced;
- a serving pod is replaced only if at most `most_unavailable` pods do not serve afterwards;
- at most `most_unavailable` pods are being replaced.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from omni_operator.api.names import REWARD_GROUP, ROLLOUT_GROUP
from omni_operator.status.condition_value import ConditionValue
from omni_operator.status.observed import evidence
from omni_operator.status.observed.job_facts import JobFacts, RollingUpdate
from omni_operator.status.observed.observation import Attempt, ObservedPod, ObservedRayCluster, PodGroup

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
class RolledPods:
    """The pods of a group, compared with its template.

    Attributes:
        staying: pods that are not being deleted.
        versions: of each of them that serves, by its name, the lowest weight version of its replicas, 0 for a judge's.
            None: the trainer has not reported its replicas.
    """

    group: PodGroup
    staying: list[ObservedPod]
    versions: Mapping[str, int] | None

    @property
    def outdated(self) -> list[ObservedPod]:
        """Pods of another template, in the order in which they are replaced.

        Those without a replica that serves come first, then those with the lowest version, then the oldest.
        """
        versions = self.versions or {}
        return sorted(
            (pod for pod in self.staying if pod.template != self.group.template),
            key=lambda pod: (pod.name in versions, versions.get(pod.name, 0), pod.created, pod.name),
        )

    @property
    def waiting(self) -> list[ObservedPod]:
        """Pods that have the template and do not serve yet."""
        versions = self.versions or {}
        return [pod for pod in self.staying if pod.template == self.group.template and pod.name not in versions]

    @property
    def serving(self) -> int:
        """Number of pods that have the template and serve."""
        return len(self.staying) - len(self.outdated) - len(self.waiting)

    @property
    def waited_for(self) -> int:
        """Number of pods that are missing, or have the template and do not serve yet."""
        return max(0, self.group.replicas - len(self.staying)) + len(self.waiting)


def _rolled_pods(attempt: Attempt, name: str) -> RolledPods | None:
    """The pods of a group; None if the operator that created the attempt has set no digest of its template."""
    group = attempt.groups.get(name)
    if group is None or not group.template:
        return None
    staying = [pod for pod in attempt.group_pods[name] if not pod.deleting and pod.name not in group.removed]
    reported = attempt.versions.get(name)
    if reported is None:
        return RolledPods(group, staying, None)
    ready = (pod for pod in staying if pod.ready and pod.address in reported)
    return RolledPods(group, staying, {pod.name: reported[pod.address] for pod in ready})


def find_steps(facts: JobFacts, attempt: Attempt, now: datetime) -> tuple[tuple[ReplacementStep, ...], datetime | None]:
    """The next steps of a running attempt, at most one for each group, and the next time at which a deadline passes."""
    cluster = attempt.cluster
    steps: list[ReplacementStep] = []
    deadlines: list[datetime] = []
    if cluster is None or cluster.deleting:
        return (), None
    for policy in facts.rolling:
        pods = _rolled_pods(attempt, policy.group)
        if pods is None or pods.versions is None:
            continue
        # When the time of each pod passes that has a node, or may still get one without a change of the cluster.
        late = [pod.created + policy.deadline for pod in pods.waiting if not pod.unschedulable]
        if step := _next_step(cluster, pods, policy, attempt, late, now):
            steps.append(step)
        if pods.group.replacing:
            deadlines += [pods.group.replacing + policy.deadline, *late]
    # One that has passed is of a group that is paused, or of which new pods serve.
    return tuple(steps), min((at for at in deadlines if at > now), default=None)


def _next_step(
    cluster: ObservedRayCluster,
    pods: RolledPods,
    policy: RollingUpdate,
    attempt: Attempt,
    deadlines: list[datetime],
    now: datetime,
) -> ReplacementStep | None:
    """The next step towards pods that all have the template of `policy`; None: wait, or there is nothing to do."""
    group = pods.group
    if policy.paused:
        return None
    if policy.template not in (group.template, group.refused):
        return StartReplacement(cluster, group)
    unsaid = any(pod.ready and pod.name not in (pods.versions or {}) for pod in pods.staying)
    if attempt.report and unsaid:  # whether a pod that is ready serves, only a report says
        now = min(now, attempt.report.at)
    late = pods.waited_for and group.replacing and now >= group.replacing + policy.deadline
    # Where pods of the template serve, it is not the template's fault that a pod is missing or finds no node: a node
    # was lost, or more pods were asked for than there is room for.
    if late and (not pods.serving or any(now >= deadline for deadline in deadlines)):
        return GiveUpTemplate(cluster, group, _why_not_ready(cluster, pods, policy))
    if not pods.outdated:
        return FinishReplacement(cluster, group) if group.replacing and not pods.waited_for else None
    # Those that do not serve come first, so pods that serve are replaced only as far as no more than these are missing.
    chosen = pods.outdated[: max(0, policy.most_unavailable - pods.waited_for)]
    if not chosen:
        return None
    leaving = {pod.name for pod in attempt.group_pods[group.name]} - {pod.name for pod in pods.staying}
    return ReplacePods(cluster, group, tuple(sorted({*leaving, *(pod.name for pod in chosen)})))


def _why_not_ready(cluster: ObservedRayCluster, pods: RolledPods, policy: RollingUpdate) -> str:
    """Why pods were given up, as far as pods or KubeRay say it."""
    seconds = int(policy.deadline.total_seconds())
    text = (
        f"{policy.group} pods with the current spec did not serve within {seconds} s "
        f"({FIELDS[policy.group]}.updateStrategy.progressDeadlineSeconds), and are replaced by pods of the spec before"
    )
    for pod in pods.staying:
        if pod.template != pods.group.template:
            continue
        if pod.unschedulable:
            return f"{text}: pod {pod.name}: {pod.unschedulable}"
        for container in pod.waiting:
            return f"{text}: pod {pod.name}: {container.reason}: {container.message}"
        for ended in pod.ended:
            return f"{text}: pod {pod.name}: {ended.reason}, exit code {ended.exit_code}"
    return evidence.shorten(f"{text}: {cluster.failure}" if cluster.failure else text)


def review_rolling(facts: JobFacts, attempt: Attempt) -> ConditionValue | None:
    """The condition `Updated` while pods are replaced, or after that was given up; None otherwise."""
    reviews = [value for policy in facts.rolling if (value := _review_group(attempt, policy))]
    if not reviews:
        return None
    reason = min((value.reason for value in reviews), key=ROLLING_REASONS.index)
    return ConditionValue("False", reason, evidence.shorten("; ".join(value.message for value in reviews)))


def _review_group(attempt: Attempt, policy: RollingUpdate) -> ConditionValue | None:
    """What `review_rolling` says of one group."""
    pods = _rolled_pods(attempt, policy.group)
    if pods is None:
        return None
    group = pods.group
    current = policy.template == group.template
    if not current and policy.template == group.refused:
        return ConditionValue("False", "RolledBack", group.refusal)
    if current and not group.replacing and not pods.outdated:
        return None
    known = current and pods.versions is not None
    text = f"{pods.serving if known else 0} of {group.replicas} {group.name} pods have the current spec and serve"
    if known and pods.waited_for:
        text += f", {pods.waited_for} missing or not ready"
    if policy.paused:
        return ConditionValue(
            "False", "RollingUpdatePaused", f"{text}; the annotation {policy.paused} pauses the others"
        )
    if pods.versions is None:
        text += "; waiting for the trainer's report of its replicas"
    return ConditionValue("False", "RollingUpdate", text)
