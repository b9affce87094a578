"""How a job ends, is tried again, waits and is cleaned up. On one machine, by `drl run`, these do not count."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from .base import StrictModel

# Why an attempt failed: the classifier says one of these, rules name them.
FailureReason: TypeAlias = Literal[
    "ImagePullFailed", "InvalidConfig", "Unschedulable", "QuotaExceeded", "StartFailed", "HeadLost", "WorkerLost",
    "Preempted", "OutOfMemory", "AcceleratorFault", "CollectiveTimeout", "WeightSyncFailed", "ApplicationError",
    "DeadlineExceeded", "PreRunningDeadlineExceeded", "Unknown",
]  # fmt: skip
FailureAction: TypeAlias = Literal["Fail", "Retry", "RetryIgnoreLimit"]
Seconds = Annotated[int, Field(ge=1, le=31_536_000)]
ATTEMPTS = 99  # a name ends in two digits


class FailureRule(StrictModel):
    """What to do after a failure of some kind."""

    on_reasons: Annotated[tuple[FailureReason, ...], Field(strict=False)] = Field(
        min_length=1, max_length=16, description="Reasons that this rule is for."
    )
    action: FailureAction = Field(
        description="Fail: no other attempt. Retry: another one, counted by backoffLimit. "
        "RetryIgnoreLimit: another one that is not counted."
    )


class FailurePolicy(StrictModel):
    """Which failures are worth another attempt."""

    rules: Annotated[tuple[FailureRule, ...], Field(strict=False)] = Field(
        default=(), max_length=20, description="The first rule that names the reason decides. None does: Retry."
    )


class SuspendPolicy(StrictModel):
    """What happens before a job gives its devices back."""

    mode: Literal["CheckpointThenSuspend", "Immediate"] = Field(
        default="CheckpointThenSuspend", description="CheckpointThenSuspend: the running step ends and is saved first."
    )
    grace_seconds: Annotated[int, Field(ge=0, le=86_400)] = Field(
        default=300, description="How long the checkpoint may take; then the job is suspended without it."
    )


CleanupPolicy: TypeAlias = Literal["DeleteCluster", "DeleteWorkers", "Retain"]
ManagedBy: TypeAlias = Literal["diffusionrl.io/operator", "kueue.x-k8s.io/multikueue"]
