"""Retries, suspension and clean-up of a job. These have no effect in a local run."""

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from omni_operator.api.base import StrictModel

# Reasons of failed attempts, as the operator reports them and as rules name them.
FailureReason: TypeAlias = Literal[
    "ImagePullFailed",
    "InvalidConfig",
    "Unschedulable",
    "QuotaExceeded",
    "StartFailed",
    "HeadLost",
    "WorkerLost",
    "Preempted",
    "OutOfMemory",
    "AcceleratorFault",
    "CollectiveTimeout",
    "WeightSyncFailed",
    "OutputNotSent",
    "ApplicationError",
    "DeadlineExceeded",
    "PreRunningDeadlineExceeded",
    "Unknown",
]
FailureAction: TypeAlias = Literal["Fail", "Retry", "RetryIgnoreLimit"]
Seconds = Annotated[int, Field(ge=1, le=31_536_000)]


class FailureRule(StrictModel):
    """What the operator does after a failure with one of these reasons."""

    on_reasons: Annotated[tuple[FailureReason, ...], Field(strict=False)] = Field(
        min_length=1, max_length=16, description="Reasons that this rule applies to."
    )
    action: FailureAction = Field(
        description="Fail: fail the job. Retry: start another attempt, which counts against backoffLimit. "
        "RetryIgnoreLimit: start another attempt, which does not count."
    )


class FailurePolicy(StrictModel):
    """Which failures the operator retries."""

    rules: Annotated[tuple[FailureRule, ...], Field(strict=False)] = Field(
        default=(), max_length=20, description="The first rule with the reason of the failure applies. Default: Retry."
    )


class SuspendPolicy(StrictModel):
    """What the operator does before it suspends a job."""

    mode: Literal["CheckpointThenSuspend", "Immediate"] = Field(
        default="CheckpointThenSuspend",
        description="CheckpointThenSuspend: finish the running step and save a checkpoint first. Immediate: delete the "
        "pods at once.",
    )
    grace_seconds: Annotated[int, Field(ge=0, le=86_400)] = Field(
        default=300,
        description="Seconds that the checkpoint may take; after that, the job is suspended without it. A job in a "
        "queue has as long to save when the queue preempts it.",
    )


CleanupPolicy: TypeAlias = Literal["DeleteCluster", "DeleteWorkers", "Retain"]
ManagedBy: TypeAlias = Literal["diffusionrl.io/operator", "kueue.x-k8s.io/multikueue"]
