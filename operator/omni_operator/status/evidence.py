"""PURE: what pods and messages say about a failure."""

from __future__ import annotations

import re

from .observation import Evidence, ObservedPod
from .reasons import FailureReason

# Words of drivers and collective libraries, most telling first.
_SIGNS = (
    (FailureReason.ACCELERATOR_FAULT, r"\bXid\b|uncorrectable ECC|CUDA error: (an illegal|unspecified|device)|"
     r"cudaErrorECC|device lost|NPU (is )?lost|aclrt\w* .*50\d{4}|ACL_ERROR_RT_(DEV|AICORE)|HBM (UCE|error)"),
    (FailureReason.COLLECTIVE_TIMEOUT, r"(NCCL|HCCL|Gloo|ProcessGroup\w*).{0,80}(time[d]? ?out|watchdog)|"
     r"collective operation timeout|HCCL_(E|EXEC).*TIMEOUT"),
    (FailureReason.WEIGHT_SYNC_FAILED, r"\bStaleSample\b|WeightSync\w*Error|weight (sync|update) failed"),
    (FailureReason.OUT_OF_MEMORY, r"OutOfMemory|out of memory|OOMKilled|\bOOM\b|ray\.exceptions\.OutOfMemoryError"),
    (FailureReason.INVALID_CONFIG, r"\bexit (code|status) 2\b|InvalidConfig|ConfigCompositionException|"
     r"Could not override|ValidationError"),
)  # fmt: skip
_COMPILED = tuple((reason, re.compile(pattern, re.IGNORECASE)) for reason, pattern in _SIGNS)
TEXT_LIMIT = 512
CONFIG_ERROR = "CreateContainerConfigError"
_MISSING_CLAIM = re.compile(r'persistentvolumeclaim "[^"]*" not found')
PULL_ERRORS = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"}
)
PERMANENT_PULL_ERRORS = frozenset({"InvalidImageName", "ErrImageNeverPull"})


def shorten(text: str, limit: int = TEXT_LIMIT) -> str:
    """One line of at most `limit` characters, with its begin and its end: an error is named at one of the two."""
    line = " ".join(text.split())
    if len(line) <= limit:
        return line
    begin = limit // 3
    return f"{line[:begin]} ... {line[-(limit - begin - 5) :]}"


def reason_from_text(text: str) -> FailureReason | None:
    """The reason that an error's words betray; None where they say nothing known."""
    return next((reason for reason, pattern in _COMPILED if pattern.search(text)), None)


def find_evidence(pod: ObservedPod) -> Evidence | None:
    """What this pod's state says about a failure, if it says something that outlives the pod."""
    if pod.disrupted:
        return Evidence(reason=FailureReason.PREEMPTED, text=shorten(f"pod {pod.name}: {pod.disrupted}"))
    for end in pod.ended:
        if end.reason == "OOMKilled":
            return Evidence(
                reason=FailureReason.OUT_OF_MEMORY,
                text=f"container {end.container} of pod {pod.name} was killed: out of memory",
            )
        found = reason_from_text(end.message) if end.exit_code else None
        if found:
            return Evidence(reason=found, text=shorten(f"pod {pod.name}: {end.message}"))
    return None


def image_pull_error(pod: ObservedPod) -> str:
    """Words about an image that this pod cannot pull; empty where it can."""
    for wait in pod.waiting:
        if wait.reason in PULL_ERRORS:
            return shorten(f"pod {pod.name}, container {wait.container}: {wait.reason}: {wait.message}".rstrip(": "))
    return ""


def container_config_error(pod: ObservedPod) -> str:
    """Why the kubelet cannot create a container, e.g. a Secret that does not exist; empty where it can."""
    for wait in pod.waiting:
        if wait.reason == CONFIG_ERROR:
            return shorten(f"pod {pod.name}, container {wait.container}: {wait.message}; correct it and the pod starts")
    return ""


def missing_claim(pod: ObservedPod) -> str:
    """A PersistentVolumeClaim that the pod waits for and that does not exist; empty where there is none."""
    found = _MISSING_CLAIM.search(pod.unschedulable)
    return f"pod {pod.name}: {found[0]}; create it, or correct its name in the job" if found else ""


def crash_loop_error(pod: ObservedPod, restarts: int) -> str:
    """Words about a container that keeps failing; empty where none does."""
    if pod.restarts < restarts or not any(wait.reason == "CrashLoopBackOff" for wait in pod.waiting):
        return ""
    said = "; ".join(f"{end.container} exit code {end.exit_code} {end.message}".rstrip() for end in pod.ended)
    return shorten(f"pod {pod.name} restarted {pod.restarts} times: {said}".rstrip(": "))
