"""PURE: reasons of failures, from the state of pods and the text of errors."""

from __future__ import annotations

import re
from collections.abc import Iterable

from omni_operator.status.reasons.names import FailureReason

from .observation import Evidence, ObservedPod

# Error messages of drivers and libraries, the most specific first.
_SIGNS: tuple[tuple[FailureReason, str], ...] = (
    (
        "AcceleratorFault",
        r"\bXid\b|uncorrectable ECC|CUDA error: (an illegal|unspecified|device)|"
        r"cudaErrorECC|device lost|NPU (is )?lost|aclrt\w* .*50\d{4}|ACL_ERROR_RT_(DEV|AICORE)|HBM (UCE|error)",
    ),
    (
        "CollectiveTimeout",
        r"(NCCL|HCCL|Gloo|ProcessGroup\w*).{0,80}(time[d]? ?out|watchdog)|"
        r"collective operation timeout|HCCL_(E|EXEC).*TIMEOUT",
    ),
    ("WeightSyncFailed", r"\bStaleSample\b|WeightSync\w*Error|weight (sync|update) failed"),
    # Ray names the kernel's OOM killer among the possible causes. The others are said by a rank of another one.
    (
        "WorkerLost",
        r"Job supervisor actor died|ncclRemoteError|"
        r"gloo/transport/.{0,160}(closed by peer|reset by peer|Broken pipe)",
    ),
    ("OutOfMemory", r"OutOfMemory|out of memory|OOMKilled|\bOOM\b|ray\.exceptions\.OutOfMemoryError"),
    (
        "InvalidConfig",
        r"\bexit (code|status) 2\b|InvalidConfig|ConfigCompositionException|"
        r"Could not override|ValidationError",
    ),
)
_COMPILED = tuple((reason, re.compile(pattern, re.IGNORECASE)) for reason, pattern in _SIGNS)
# What Ray says of a training program that got SIGKILL (137), or of the shell that started it (-9).
_KILLED = re.compile(r"entrypoint command failed with exit code (-9|137)\b")
TEXT_LIMIT = 512
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
CONFIG_ERROR = "CreateContainerConfigError"
SIDECAR = "SidecarNotRunning"
_UNBOUND_CLAIM = "unbound immediate PersistentVolumeClaims"  # the scheduler's message
_MISSING_CLAIM = re.compile(r'persistentvolumeclaim "[^"]*" not found')
# What a ResourceQuota's admission answers; the quota's status is unknown until a controller has counted new resources.
_QUOTA = re.compile(r"\b(exceeded|failed|status unknown for) quota: ")
PULL_ERRORS = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"}
)
PERMANENT_PULL_ERRORS = frozenset({"InvalidImageName", "ErrImageNeverPull"})


def without_control(text: str) -> str:
    """The text with blanks for control characters, with which it could write to the terminal of who reads it."""
    return _CONTROL.sub(" ", text)


def shorten(text: str, limit: int = TEXT_LIMIT) -> str:
    """Shorten to one line of at most `limit` characters: one of beginning and end, which are kept, names the error.

    Control characters become blanks.
    """
    line = " ".join(without_control(text).split())
    if len(line) <= limit:
        return line
    begin = limit // 3
    return f"{line[:begin]} ... {line[-(limit - begin - 5) :]}"


def reason_from_text(text: str) -> FailureReason | None:
    """Reason that matches the text of an error; None if none does."""
    return next((reason for reason, pattern in _COMPILED if pattern.search(text)), None)


def killed_program(message: str) -> str:
    """What to say of a Ray job whose training program was killed; empty if it was not.

    With cgroups v1, the kernel kills one process of a container that is out of memory, and no pod says so.
    """
    if not _KILLED.search(message):
        return ""
    return shorten(
        "the training program got SIGKILL, which the kernel sends when the memory of a container or node runs out: "
        f"raise spec.trainer.resources.limits.memory, or lower the batch: {message}"
    )


def is_refused_by_quota(text: str) -> bool:
    """Whether a ResourceQuota is the reason of a refusal."""
    return _QUOTA.search(text) is not None


def find_evidence(pod: ObservedPod) -> Evidence | None:
    """Reason of a failure in a pod's state, kept after the pod is gone; None if there is none."""
    if pod.disrupted:
        return Evidence(pod=pod.name, reason="Preempted", text=shorten(f"pod {pod.name}: {pod.disrupted}"))
    for end in pod.ended:
        if not end.ray:
            continue
        if end.reason == "OOMKilled":
            return Evidence(
                pod=pod.name,
                reason="OutOfMemory",
                text=f"container {end.container} of pod {pod.name} was killed because it ran out of memory",
            )
        reason = reason_from_text(end.message) if end.exit_code else None
        if reason:
            return Evidence(pod=pod.name, reason=reason, text=shorten(f"pod {pod.name}: {end.message}"))
    return None


def image_pull_error(pod: ObservedPod) -> str:
    """Why the pod cannot pull an image; empty if it can."""
    for wait in pod.waiting:
        if wait.reason in PULL_ERRORS:
            return shorten(f"pod {pod.name}, container {wait.container}: {wait.reason}: {wait.message}".rstrip(": "))
    return ""


def find_obstacle(pod: ObservedPod) -> tuple[str, str] | None:
    """Reason and message of what a user has to correct before the pod starts, such as a missing Secret or claim."""
    for wait in pod.waiting:
        if wait.reason == CONFIG_ERROR:
            text = f"pod {pod.name}, container {wait.container}: {wait.message}; correct it and the pod starts"
            return CONFIG_ERROR, shorten(text)
    if match := _MISSING_CLAIM.search(pod.unschedulable):
        return "ClaimNotFound", f"pod {pod.name}: {match[0]}; create it, or correct its name in the job"
    if _UNBOUND_CLAIM in pod.unschedulable:  # a claim has no volume, as in a cluster without a storage class
        text = f"pod {pod.name}: {pod.unschedulable}; kubectl get persistentvolumeclaims names the one that is Pending"
        return "ClaimNotBound", shorten(text)
    return None


def sidecar_problem(pods: Iterable[ObservedPod]) -> str:
    """What is wrong with containers that are not Ray's, of the first pod with any; empty if nothing is."""
    troubled = (pod for pod in sorted(pods, key=lambda pod: pod.name) if pod.sidecars)
    return next((shorten(f"pod {pod.name}, {pod.sidecars}") for pod in troubled), "")


def crash_loop_error(pod: ObservedPod, restarts: int) -> str:
    """Why a container keeps restarting; empty if none does."""
    for wait in pod.waiting:
        if wait.reason == "CrashLoopBackOff" and wait.restarts >= restarts:
            ends = (end for end in pod.ended if end.container == wait.container)
            exits = "".join(f": exit code {end.exit_code} {end.message}".rstrip() for end in ends)
            return shorten(f"container {wait.container} of pod {pod.name} restarted {wait.restarts} times{exits}")
    return ""
