"""Values that KubeRay, kubelets, trainers or anyone who may write their statuses could send."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

TIMES = st.sampled_from(
    [
        "0001-01-01T00:00:00Z",
        "0001-01-01T00:00:00+14:00",
        "1970-01-01T00:00:00Z",
        "2026-01-01T00:00:10Z",
        "2026-01-01T00:00:10.123456789+02:00",
        "2999-01-01T00:00:00Z",
        "9999-12-31T23:59:59Z",
        "9999-12-31T23:59:59-14:00",
    ]
)
TEXTS = st.one_of(
    st.sampled_from(
        ["", "x" * 900, "y" * 100_000, "\x00\x1b[31m\u2028\u202e", "exceeded quota", "OOMKilled", "é" * 600]
    ),
    st.text(max_size=30),
)
COUNTS = st.one_of(st.sampled_from([-1, 0, 1, 2, -(2**31), 2**31 - 1, 2**63 - 1, 10**30]), st.integers(0, 5))


def optional(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=fields)


def conditions(*kinds: str) -> st.SearchStrategy[list[dict[str, Any]]]:
    one = st.fixed_dictionaries(
        {"type": st.sampled_from(kinds), "status": st.sampled_from(["True", "False", "Unknown"])},
        optional={"reason": TEXTS, "message": TEXTS, "lastTransitionTime": TIMES},
    )
    return st.lists(one, max_size=len(kinds), unique_by=lambda found: found["type"])


RAYJOB = optional(
    jobDeploymentStatus=st.sampled_from(
        [
            "",
            "Initializing",
            "Running",
            "Complete",
            "Failed",
            "Suspending",
            "Suspended",
            "Retrying",
            "Waiting",
            "ValidationFailed",
            "Scheduled",
            "x" * 900,
        ]
    ),
    jobStatus=st.sampled_from(["", "PENDING", "RUNNING", "SUCCEEDED", "FAILED", "STOPPED", "x" * 900]),
    reason=st.one_of(TEXTS, st.sampled_from(["DeadlineExceeded", "AppFailed", "JobStatusCheckTimeoutExceeded"])),
    message=TEXTS,
    rayClusterName=TEXTS,
    dashboardURL=TEXTS,
    startTime=TIMES,
    endTime=TIMES,
    rayJobInfo=optional(startTime=TIMES, endTime=TIMES),
    failed=COUNTS,
    succeeded=COUNTS,
)
RAYCLUSTER = optional(
    state=TEXTS,
    desiredWorkerReplicas=COUNTS,
    readyWorkerReplicas=COUNTS,
    conditions=conditions("HeadPodReady", "RayClusterProvisioned", "ReplicaFailure"),
)
STATE = optional(
    waiting=optional(reason=st.one_of(TEXTS, st.sampled_from(["ImagePullBackOff", "CrashLoopBackOff"])), message=TEXTS),
    terminated=optional(reason=TEXTS, exitCode=COUNTS, message=TEXTS),
)
CONTAINER = st.fixed_dictionaries(
    {"name": TEXTS}, optional={"state": STATE, "lastState": STATE, "restartCount": COUNTS}
)
POD = optional(
    phase=st.sampled_from(["Pending", "Running", "Succeeded", "Failed", "Unknown"]),
    conditions=conditions("PodScheduled", "Ready", "DisruptionTarget"),
    containerStatuses=st.lists(CONTAINER, max_size=2),
    initContainerStatuses=st.lists(CONTAINER, max_size=1),
)
