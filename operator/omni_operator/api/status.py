"""`status` of a job: what the operator observed. Everything may be missing; what is unknown is left aside."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from .base import LenientModel

ConditionType: TypeAlias = Literal[
    "Admitted", "Ready", "WeightsInSync", "Updated", "ProgressStalled", "Suspended", "Succeeded", "Failed",
    "ResultsKept", "AcceleratorChosen",
]  # fmt: skip
CONDITION_TYPES: tuple[ConditionType, ...] = (
    "Admitted", "Ready", "WeightsInSync", "Updated", "ProgressStalled", "Suspended", "Succeeded", "Failed",
    "ResultsKept", "AcceleratorChosen",
)  # fmt: skip
FAILURES_KEPT = 5
WARNINGS_KEPT = 8
TRUE, FALSE, UNKNOWN = "True", "False", "Unknown"

Short = Annotated[str, Field(max_length=256)]
Text = Annotated[str, Field(max_length=4096)]
# RFC 3339 in UTC, as Kubernetes writes it.
Time = Annotated[str, Field(max_length=40, json_schema_extra={"format": "date-time"})]
Count = Annotated[int, Field(ge=0)]


class Condition(LenientModel):
    """One thing that is true of the job or not."""

    type: Annotated[str, Field(max_length=64)] = Field(description="What it is about.")
    status: Literal["True", "False", "Unknown"] = Field(description="Whether it holds.")
    reason: Annotated[str, Field(min_length=1, max_length=128)] = Field(description="Why, in a word for programs.")
    message: Text = Field(default="", description="Why, and what to do, for people.")
    observed_generation: Count = Field(default=0, description="Generation of the spec that this is about.")
    last_transition_time: Time | None = Field(default=None, description="When the status last changed.")


class Failure(LenientModel):
    """An attempt that failed."""

    attempt: Count = Field(description="Which one.")
    reason: Short = Field(description="Why, of the reasons that spec.failurePolicy knows.")
    message: Text = Field(default="", description="What was seen: an exit code, the last lines of the log.")
    at: Time | None = Field(default=None, description="When.")
    checkpoint: Short | None = Field(default=None, description="Checkpoint that the next attempt goes on from.")
    counted: bool = Field(default=True, description="Whether spec.backoffLimit counts it.")


class Children(LenientModel):
    """Objects of the running attempt."""

    ray_job: Short | None = Field(default=None, description="The RayJob.")
    ray_cluster: Short | None = Field(default=None, description="The RayCluster, made by KubeRay.")
    dashboard_url: Annotated[str, Field(max_length=1024)] | None = Field(
        default=None, alias="dashboardURL", description="Ray's dashboard, inside the cluster."
    )


class RolloutStatus(LenientModel):
    """Pods that draw pictures."""

    desired: Count = Field(default=0, description="Wanted.")
    ready: Count = Field(default=0, description="Serving.")
    updated: Count = Field(default=0, description="As the spec says now.")
    summary: Short | None = Field(default=None, description="ready/desired, for kubectl get.")


class Weights(LenientModel):
    """Versions of the weights; a version is the step that made it."""

    trainer_version: Count | None = Field(default=None, description="Of the trainer.")
    min_replica_version: Count | None = Field(default=None, description="Of the engine that is furthest behind.")
    max_replica_version: Count | None = Field(default=None, description="Of the engine that is furthest ahead.")
    lag: Count | None = Field(default=None, description="trainerVersion - minReplicaVersion.")
    last_sync_time: Time | None = Field(default=None, description="When weights were last sent.")
    last_sync_seconds: float | None = Field(default=None, description="How long that took.")


class Progress(LenientModel):
    """How far the job is, as the trainer reports it."""

    global_step: Count | None = Field(default=None, description="Last step that is done.")
    total_steps: Count | None = Field(default=None, description="Steps of the whole run.")
    percent: Annotated[int, Field(ge=0, le=100)] | None = Field(default=None, description="globalStep of totalSteps.")
    summary: Short | None = Field(default=None, description="globalStep/totalSteps, for kubectl get.")
    reward: float | None = Field(default=None, description="Mean reward of the last step.")
    reward_summary: Short | None = Field(default=None, description="The reward, rounded, for kubectl get.")
    validation_reward: float | None = Field(default=None, description="Mean reward of the last evaluation.")
    samples: Count | None = Field(default=None, description="Pictures drawn in this attempt.")
    images_per_second: float | None = Field(default=None, description="Of the last step.")
    estimated_remaining_seconds: Count | None = Field(default=None, description="To the last step.")
    last_update_time: Time | None = Field(default=None, description="When the trainer last reported a step.")
    heartbeat_time: Time | None = Field(default=None, description="When the trainer last reported anything.")


class CheckpointStatus(LenientModel):
    """What the job can go on from."""

    last: Short | None = Field(default=None, description="Name of the newest checkpoint.")
    step: Count | None = Field(default=None, description="Its step.")
    time: Time | None = Field(default=None, description="When it was complete.")


class TrainerWarning(LenientModel):
    """A warning of the trainer."""

    attempt: Count = Field(description="Attempt that it is about.")
    reason: Short = Field(description="What it is about, in a word for programs, e.g. SamplesCollapsed.")
    message: Text = Field(default="", description="What the trainer found, and what to do.")
    time: Time | None = Field(default=None, description="When the trainer last reported it.")


class Usage(LenientModel):
    """What the job has used, all attempts together."""

    accelerator_seconds: Annotated[float, Field(ge=0)] = Field(default=0.0, description="Devices x seconds.")
    samples: Count = Field(default=0, description="Pictures drawn.")
    accelerator_seconds_per_thousand_samples: float | None = Field(default=None, description="The price of pictures.")


class Status(LenientModel):
    """What the operator observed; written by it alone."""

    observed_generation: Count | None = Field(default=None, description="Generation of the spec that this is about.")
    conditions: tuple[Condition, ...] = Field(
        default=(),
        max_length=16,
        description="What is true of the job; all of them from the first visit on.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    attempts: Count = Field(default=0, description="RayJobs made so far.")
    failures: tuple[Failure, ...] = Field(
        default=(),
        max_length=FAILURES_KEPT,
        description=f"The last {FAILURES_KEPT} attempts that failed.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    warnings: tuple[TrainerWarning, ...] = Field(
        default=(),
        max_length=WARNINGS_KEPT,
        description=f"Warnings of the running or last attempt's trainer, the last {WARNINGS_KEPT}, each reason once.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    failures_counted: Count = Field(default=0, description="Failures that spec.backoffLimit counts, all of them.")
    children: Children = Field(default=Children(), description="Objects of the running attempt.")
    rollout: RolloutStatus = Field(default=RolloutStatus(), description="Pods that draw pictures.")
    weights: Weights = Field(default=Weights(), description="Versions of the weights.")
    progress: Progress = Field(default=Progress(), description="How far the job is.")
    checkpoint: CheckpointStatus = Field(default=CheckpointStatus(), description="What the job can go on from.")
    usage: Usage = Field(default=Usage(), description="What the job has used.")
    start_time: Time | None = Field(default=None, description="When the first attempt was made.")
    attempt_start_time: Time | None = Field(default=None, description="When the running attempt was made.")
    running_time: Time | None = Field(default=None, description="When the running attempt's trainer was started.")
    completion_time: Time | None = Field(default=None, description="When the job succeeded or failed for good.")

    def condition(self, kind: str) -> Condition | None:
        """The condition of that type."""
        return next((condition for condition in self.conditions if condition.type == kind), None)

    def is_true(self, kind: str) -> bool:
        """Whether the condition of that type is there and true."""
        found = self.condition(kind)
        return found is not None and found.status == TRUE

    @property
    def finished(self) -> bool:
        """Whether the job has succeeded or failed for good."""
        return self.is_true("Succeeded") or self.is_true("Failed")
