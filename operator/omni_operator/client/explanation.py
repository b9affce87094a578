"""PURE: what holds a job, since when, and what to do: from its conditions, its pods and their events."""

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from omni_operator.api.names import JOB_LABEL
from omni_operator.api.status import RECONCILE_ERROR, Condition, Status
from omni_operator.status.observed.evidence import PULL_ERRORS, SIDECAR, shorten
from omni_operator.status.observed.observation import ObservedPod
from omni_operator.status.observed.timestamps import format_timestamp
from omni_operator.status.reasons.table import REASONS

from .kubernetes_events import Event

# Advice for reasons that come from Kubernetes, and that the operator does not explain.
ADVICE = {
    **dict.fromkeys(sorted(PULL_ERRORS), "check the name of the image and the pull secrets"),
    "CrashLoopBackOff": "read the log of the pod: drl logs NAME",
    "FailedMount": "check that the volume exists and that the pod's node can mount it",
    "NotScheduled": "check that the scheduler of spec.scheduling.schedulerName runs, and its name",
    "FailedAttachVolume": "check that no other node holds the volume, which may be ReadWriteOnce",
}
# Conditions that tell why a job in this state is there; the first that is not as wanted counts.
_WANTED = (("Admitted", "False"), ("Ready", "False"), ("ProgressStalled", "True"), ("WeightsInSync", "False"))
_MUST_SPECIFY = "set what the message says must be specified in resources of spec.head, spec.trainer and other pods"
_ENDS = {"Succeeded": "Succeeded", "Failed": "Failed", "Suspended": "Suspended", "Suspending": "Suspended"}
_NO_CLUSTER = "if that lasts for more than a minute, check that KubeRay's operator runs and watches this namespace"
_STARTING = frozenset({"ContainerCreating", "PodInitializing"})
_COUNTED = frozenset({"PodsNotReady", "TooFewRollouts"})  # the reason that a pod has is a better advice
_GARBAGE_COLLECTION = frozenset({"foregroundDeletion", "orphan"})  # Kubernetes' own finalizers
_RISKS = frozenset({"ResultsOnEmptyDir", "NoVendor"})  # of the results: they hold no job
_REFUSED_POD = re.compile(r"[Pp]ods? \S+ is (?:invalid|forbidden): ")
WARNINGS_SHOWN = 3
NAMES_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What was read besides the job.

    Attributes:
        pods: pods of the running attempt.
        warnings: warning events of the job and of its attempt's objects, the oldest first.
        unread: what could not be read, each with the reason.
    """

    pods: tuple[ObservedPod, ...] = ()
    warnings: tuple[Event, ...] = ()
    unread: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PodTrouble:
    """Why pods do not run."""

    reason: str
    text: str
    pods: tuple[ObservedPod, ...]


def explain(
    name: str,
    status: Status,
    created: str | None,
    deleted: str | None = None,
    around: Surroundings = Surroundings(),
    finalizers: Collection[str] = (),
) -> str:
    """One paragraph about a job.

    Args:
        created: when it was created.
        deleted: when its deletion was requested.
        finalizers: those of the job.
    """
    if deleted:
        return _join([f"{name} is being deleted since {deleted}", *_explain_deletion(name, finalizers)])
    failed = status.condition(RECONCILE_ERROR)
    if status.state is None and failed is None:
        return _join(
            [
                f"{name} was created at {created or 'an unknown time'}, and no operator has seen it",
                "What to do: check that the operator runs and watches this namespace",
                *_unread(around),
            ]
        )
    main_cause = find_cause(status)
    troubles = find_pod_troubles(around.pods)
    updated = None if status.state in _ENDS else _not_updated(status)
    conditions = [
        condition for condition in (main_cause, None if updated is main_cause else updated) if condition is not None
    ]
    state = f"is {status.state}" if status.state else "has no state yet"
    parts = [f"{name} {state}" + (f", step {status.progress.summary}" if status.progress.summary else "")]
    if failed is None and main_cause is None and not troubles:
        return _join([*parts, "Nothing holds it", *_unread(around)])
    parts += map(_describe_condition, [*([failed] if failed else ()), *conditions])
    if without_cluster := _lacks_cluster(status, main_cause):
        parts.append(f"KubeRay has not created the RayCluster of RayJob {status.children.ray_job} yet")
    told = " ".join(parts)
    parts += [_describe_trouble(trouble, told) for trouble in troubles]
    told = " ".join(parts)
    warnings = _untold(around.warnings, told)[-WARNINGS_SHOWN:]
    if warnings and status.state not in ("Succeeded", "Suspended"):
        parts.append("Last warnings: " + "; ".join(map(_describe_event, warnings)))
    causes = [(RECONCILE_ERROR, "")] if failed else []
    causes += [(condition.reason, condition.message) for condition in conditions]
    causes += [(trouble.reason, trouble.text) for trouble in troubles]
    causes += [(event.reason, event.message) for event in reversed(warnings)]
    causes.sort(key=lambda cause: cause[0] in _COUNTED)
    advice = next(filter(None, (_advice(*cause) for cause in causes)), None)
    if status.state == "Suspended":
        advice = describe_resumption(status)
    if advice := advice or (_NO_CLUSTER if without_cluster else None):
        parts.append(f"What to do: {advice.replace('NAME', name)}")
    return _join([*parts, *_unread(around)])


def _explain_deletion(name: str, finalizers: Collection[str]) -> Iterator[str]:
    """What keeps a job that is being deleted."""
    others = [finalizer for finalizer in finalizers if finalizer not in _GARBAGE_COLLECTION]
    waits = "foregroundDeletion" in finalizers
    if others:
        kept = "it" if waits else "it and its pods"
        yield f"Finalizers of other programs keep {kept}: {', '.join(others)}"
        yield "What to do: find out why these programs do not remove their finalizers"
    elif waits:
        yield "It is kept until all of its objects are deleted"
        left = f"kubectl get rayjobs,rayclusters,pods --selector={JOB_LABEL}={name} lists what is left"
        yield f"What to do: {left}; a RayJob waits for KubeRay, which removes its finalizer"


def describe_resumption(status: Status) -> str:
    """What `drl resume` does with a suspended job, as the end of a sentence."""
    if not status.attempts:
        return "drl resume starts it"
    if loses_checkpoints(status):
        return "drl resume starts it again: its checkpoints were deleted with the pods (spec.checkpoint.claimName)"
    return f"drl resume continues from {status.checkpoint.last or 'the newest checkpoint, if there is one'}"


def loses_checkpoints(status: Status) -> bool:
    """Whether the checkpoints of a job are deleted with its pods."""
    kept = status.condition("ResultsKept")
    return kept is not None and kept.reason in ("ResultsOnEmptyDir", "OutputGiven")


def _untold(events: Iterable[Event], told: str) -> list[Event]:
    """Warnings that say something new about what holds a job, each refusal of a pod once, the newest last.

    KubeRay tries again to create a pod that is refused, under another name each time.
    """
    newest: dict[str, Event] = {}
    for event in events:
        if event.reason not in _RISKS:
            text = _refusal(event.message)
            newest.pop(text, None)
            newest[text] = event
    return [event for text, event in newest.items() if text not in told]


def _refusal(message: str) -> str:
    """Why the API server refused a pod, without the name of the pod; any other message as it is."""
    match = _REFUSED_POD.search(message)
    return message[match.end() :] if match else message


def find_cause(status: Status) -> Condition | None:
    """The condition behind the state; None if nothing holds the job."""
    if status.state in _ENDS:
        return status.condition(_ENDS[status.state])
    for kind, held in _WANTED:
        condition = status.condition(kind)
        if condition is not None and condition.status == held:
            return condition
    admitted = status.condition("Admitted")
    fewer = admitted if admitted is not None and admitted.reason == "PartiallyAdmitted" else None
    return _not_updated(status) or fewer


def _not_updated(status: Status) -> Condition | None:
    """The condition that tells why a job has not its current spec; None while its pods are being replaced."""
    updated = status.condition("Updated")
    return updated if updated is not None and updated.status == "False" and updated.reason != "RollingUpdate" else None


def _lacks_cluster(status: Status, cause: Condition | None) -> bool:
    """Whether KubeRay has not acted on the RayJob of the attempt that starts."""
    children = status.children
    return cause is not None and cause.reason == "Starting" and bool(children.ray_job) and not children.ray_cluster


def find_pod_troubles(pods: tuple[ObservedPod, ...]) -> list[PodTrouble]:
    """Why pods do not run, each reason once."""
    reasons = sorted(
        ((*trouble, pod) for pod in pods if not pod.deleting for trouble in _troubles_of(pod)),
        key=lambda entry: (entry[0], entry[1], entry[2].name),
    )
    return [
        PodTrouble(*key, tuple(pod for _, _, pod in group))
        for key, group in groupby(reasons, key=lambda entry: (entry[0], entry[1]))
    ]


def _troubles_of(pod: ObservedPod) -> Iterator[tuple[str, str]]:
    if pod.unschedulable:
        yield "Unschedulable", pod.unschedulable
    elif pod.phase == "Pending" and not (pod.node or pod.waiting or pod.ended):
        yield "NotScheduled", "no scheduler has handled it yet"
    for waiting in pod.waiting:
        if waiting.reason not in _STARTING:
            yield waiting.reason, waiting.message
    if pod.disrupted:
        yield "Disrupted", pod.disrupted
    for ended in pod.ended:
        if ended.exit_code:
            ending = f"container {ended.container} ended with exit code {ended.exit_code}"
            yield ended.reason or "Error", f"{ending}: {shorten(ended.message)}" if ended.message else ending
    if pod.sidecars:
        yield SIDECAR, pod.sidecars


def _describe_condition(found: Condition) -> str:
    since = f" since {found.last_transition_time}" if found.last_transition_time else ""
    return f"{found.type} is {found.status}{since}: {found.reason}" + (f": {found.message}" if found.message else "")


def _describe_trouble(trouble: PodTrouble, told: str) -> str:
    """The reason with the pods; the message only if it was not told before."""
    names = [pod.name for pod in trouble.pods]
    shown = ", ".join(names[:NAMES_SHOWN]) + (f" and {len(names) - NAMES_SHOWN} more" if names[NAMES_SHOWN:] else "")
    oldest = format_timestamp(min(pod.created for pod in trouble.pods))
    text = f": {trouble.text}" if trouble.text and trouble.text not in told else ""
    return f"{'Pod' if len(names) == 1 else 'Pods'} {shown} (created {oldest}): {trouble.reason}{text}"


def _describe_event(event: Event) -> str:
    often = f" ({event.count} times)" if event.count > 1 else ""
    return f"{event.time} {event.reason} of {event.kind} {event.name}{often}: {shorten(event.message)}"


def _unread(around: Surroundings) -> list[str]:
    return [f"Not read: {'; '.join(around.unread)}"] if around.unread else []


def _join(parts: list[str]) -> str:
    return ". ".join(part.rstrip(".") for part in parts) + "."


def _advice(reason: str, message: str) -> str:
    """What to do about a reason, as the end of a sentence; empty if there is nothing to do."""
    if reason == "QuotaExceeded" and "must specify" in message:
        return _MUST_SPECIFY
    known = REASONS.get(reason)
    return (known.action[:1].lower() + known.action[1:]).replace("`", "") if known else ADVICE.get(reason, "")
