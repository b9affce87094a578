"""PURE: reasons of failures, from the text of errors."""

import re

from omni_operator.status.reasons.names import FailureReason

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
