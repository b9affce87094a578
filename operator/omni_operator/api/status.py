"""`status` of a job. Every field is optional, and unknown fields are ignored."""

from typing import Annotated, Any, Literal, TypeAlias, get_args

from pydantic import Field

from .base import LenientModel

ConditionType: TypeAlias = Literal[
    "Admitted",
    "Ready",
    "WeightsInSync",
    "Updated",
    "ProgressStalled",
    "Suspended",
    "Succeeded",
    "Failed",
    "Stalled",
    "ResultsKept",
    "OutputSent",
    "AcceleratorChosen",
    "RolloutsScaled",
    "RewardsScaled",
]
CONDITION_TYPES: tuple[ConditionType, ...] = get_args(ConditionType)
JobState: TypeAlias = Literal[
    "Pending", "Queued", "Starting", "Running", "Suspending", "Suspended", "Retrying", "Succeeded", "Failed"
]
RECONCILE_ERROR = "ReconcileError"  # present while passes fail; written separately from the others
FAILURES_KEPT = 5
WARNINGS_KEPT = 8
# What the API server gives a new job: tools that find no observedGeneration take the job for one that is done.
UNSEEN = {"observedGeneration": -1}
TRUE = "True"

Short = Annotated[str, Field(max_length=256)]
Text = Annotated[str, Field(max_length=4096)]
# RFC 3339 in UTC, as Kubernetes writes it.
Time = Annotated[str, Field(max_length=40, json_schema_extra={"format": "date-time"})]
COUNT_LIMIT = 2**53
SECONDS_LIMIT = 1e15
Count = Annotated[int, Field(ge=0, le=COUNT_LIMIT)]


class Condition(LenientModel):
    """A condition of the job, as in other Kubernetes objects."""

    type: Annotated[str, Field(max_length=64)] = Field(description="Type of the condition.")
    status: Literal["True", "False", "Unknown"] = Field(description="True, False or Unknown.")
    reason: Annotated[str, Field(min_length=1, max_length=128)] = Field(
        description="Reason of the status, one word for programs."
    )
    message: Text = Field(default="", description="Reason of the status and what to do, as a sentence.")
    observed_generation: Count = Field(default=0, description="Generation of the spec that was observed.")
    last_transition_time: Time | None = Field(default=None, description="When the status last changed.")


class Failure(LenientModel):
    """An attempt that failed."""

    attempt: Count = Field(description="Number of the attempt.")
    reason: Short = Field(description="Reason of the failure, as in spec.failurePolicy.")
    message: Text = Field(default="", description="Error message, exit code or last lines of the log.")
    at: Time | None = Field(default=None, description="Time of the failure.")
    checkpoint: Short | None = Field(default=None, description="Checkpoint that the next attempt resumes from.")
    counted: bool = Field(default=True, description="Whether it counts against spec.backoffLimit.")


class Children(LenientModel):
    """Objects of the running attempt."""

    ray_job: Short | None = Field(default=None, description="Name of the RayJob.")
    ray_job_uid: Short | None = Field(
        default=None, alias="rayJobUID", description="Uid of the attempt's RayJob, also after its deletion."
    )
    ray_cluster: Short | None = Field(default=None, description="Name of the RayCluster, which KubeRay creates.")
    ray_cluster_uid: Short | None = Field(
        default=None, alias="rayClusterUID", description="Uid of the attempt's RayCluster, also after its deletion."
    )
    dashboard_url: Annotated[str, Field(max_length=1024)] | None = Field(
        default=None, alias="dashboardURL", description="URL of Ray's dashboard, inside the cluster."
    )


class PodCounts(LenientModel):
    """Numbers of the pods of one kind."""

    desired: Count = Field(default=0, description="Number of pods that the spec, or its autoscaling, asks for.")
    ready: Count = Field(default=0, description="Number of ready pods.")
    updated: Count = Field(default=0, description="Number of pods that were made from the current spec.")


class RolloutStatus(PodCounts):
    """Pods with engines: rollout pods, or the trainer's pods."""

    summary: Short | None = Field(default=None, description="ready/desired, for kubectl get.")
    selector: Short | None = Field(
        default=None, description="Label selector of the running attempt's rollout pods, for the scale subresource."
    )


class Weights(LenientModel):
    """Versions of the weights; a version is the number of the training step that produced it."""

    trainer_version: Count | None = Field(default=None, description="Version of the trainer.")
    min_replica_version: Count | None = Field(
        default=None, description="Version of the engine that is furthest behind."
    )
    max_replica_version: Count | None = Field(default=None, description="Version of the engine that is furthest ahead.")
    lag: Count | None = Field(default=None, description="trainerVersion - minReplicaVersion.")
    last_sync_time: Time | None = Field(default=None, description="Time of the last weight sync.")
    last_sync_seconds: float | None = Field(default=None, description="Duration of the last weight sync, in seconds.")


class Progress(LenientModel):
    """Progress of the run, as the trainer reports it."""

    global_step: Count | None = Field(default=None, description="Last finished training step.")
    total_steps: Count | None = Field(default=None, description="Training steps of the whole run.")
    percent: Annotated[int, Field(ge=0, le=100)] | None = Field(
        default=None, description="globalStep in percent of totalSteps."
    )
    summary: Short | None = Field(default=None, description="globalStep/totalSteps, for kubectl get.")
    reward: float | None = Field(default=None, description="Mean reward of the last step.")
    reward_summary: Short | None = Field(default=None, description="The reward, rounded, for kubectl get.")
    validation_reward: float | None = Field(default=None, description="Mean reward of the last evaluation.")
    held_out_scores: Annotated[dict[Short, float], Field(max_length=32)] | None = Field(
        default=None, description="Mean score of each scorer with use Evaluation in the last evaluation, by its name."
    )
    samples: Count | None = Field(
        default=None, description="Samples generated in this attempt, since its trainer last started."
    )
    unscored_samples: Count | None = Field(
        default=None, description="Samples that could not be scored; absent without any."
    )
    images_folder: Short | None = Field(
        default=None, description="Newest folder of held-out images and previews, in the run folder."
    )
    images_per_second: float | None = Field(default=None, description="Images per second in the last step.")
    estimated_remaining_seconds: Count | None = Field(default=None, description="Estimated seconds to the last step.")
    remaining_summary: Short | None = Field(default=None, description="Estimated time left, for kubectl get.")
    last_update_time: Time | None = Field(default=None, description="Time of the last reported step.")
    heartbeat_time: Time | None = Field(
        default=None, description="Time of the last report of any kind, at most 5 minutes old while reports arrive."
    )


class CheckpointStatus(LenientModel):
    """Newest checkpoint."""

    last: Short | None = Field(default=None, description="Name of the newest checkpoint.")
    step: Count | None = Field(default=None, description="Training step of the checkpoint.")
    time: Time | None = Field(default=None, description="Time at which it was complete.")


class TrainerWarning(LenientModel):
    """A warning of the trainer."""

    attempt: Count = Field(description="Number of the attempt.")
    reason: Short = Field(description="Reason of the warning, one word for programs, e.g. SamplesCollapsed.")
    message: Text = Field(default="", description="What the trainer found and what to do.")
    time: Time | None = Field(default=None, description="Time of the last report of this warning.")


class Usage(LenientModel):
    """Resources used, over all attempts."""

    accelerator_seconds: Annotated[float, Field(ge=0, le=SECONDS_LIMIT)] = Field(
        default=0.0, description="Accelerators x seconds."
    )
    accelerators: Count | None = Field(
        default=None, description="Accelerators that the running attempt asks for; absent without one."
    )
    counted_time: Time | None = Field(
        default=None, description="Time up to which acceleratorSeconds counts the running attempt."
    )
    samples: Count = Field(default=0, description="Samples generated.")
    accelerator_seconds_per_thousand_samples: float | None = Field(
        default=None, description="Accelerator seconds per 1000 samples."
    )


class Status(LenientModel):
    """State of the job, as observed by the operator, which alone writes it."""

    observed_generation: Annotated[int, Field(ge=-1, le=COUNT_LIMIT)] | None = Field(
        default=None, description="Generation of the spec that was observed; -1 before the first pass."
    )
    state: JobState | None = Field(default=None, description="State of the job in one word, from its conditions.")
    reason: Short | None = Field(default=None, description="Reason of the state, the one of the condition behind it.")
    conditions: tuple[Condition, ...] = Field(
        default=(),
        max_length=16,
        description="Conditions of the job; all types are present from the first pass on.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    attempts: Annotated[int, Field(ge=0, le=999_999)] = Field(default=0, description="Attempts (RayJobs) so far.")
    failures: tuple[Failure, ...] = Field(
        default=(),
        max_length=FAILURES_KEPT,
        description=f"The last {FAILURES_KEPT} attempts that failed.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    warnings: tuple[TrainerWarning, ...] = Field(
        default=(),
        max_length=WARNINGS_KEPT,
        description=f"Warnings about the running or last attempt, the last {WARNINGS_KEPT}, each reason once.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    failures_counted: Count = Field(default=0, description="All failures that count against spec.backoffLimit.")
    disruptions_counted: Count = Field(default=0, description="All failures that count against spec.disruptionLimit.")
    children: Children = Field(default=Children.model_construct(), description="Objects of the running attempt.")
    rollout: RolloutStatus = Field(
        default=RolloutStatus.model_construct(), description="Trainer pods, which also run the engines."
    )
    reward: PodCounts | None = Field(default=None, description="Reward pods of a judge; absent without any.")
    weights: Weights = Field(default=Weights.model_construct(), description="Versions of the weights.")
    progress: Progress = Field(default=Progress.model_construct(), description="Progress of the run.")
    checkpoint: CheckpointStatus = Field(default=CheckpointStatus.model_construct(), description="Newest checkpoint.")
    usage: Usage = Field(default=Usage.model_construct(), description="Resources used, over all attempts.")
    start_time: Time | None = Field(default=None, description="Time at which the first attempt was created.")
    attempt_start_time: Time | None = Field(default=None, description="Time at which the running attempt was created.")
    running_time: Time | None = Field(default=None, description="Time at which the running attempt's trainer started.")
    completion_time: Time | None = Field(default=None, description="Time at which the job succeeded or finally failed.")

    def condition(self, kind: str) -> Condition | None:
        """The condition of that type."""
        return next((condition for condition in self.conditions if condition.type == kind), None)

    def is_true(self, kind: str) -> bool:
        """Whether the condition of that type is True."""
        condition = self.condition(kind)
        return condition is not None and condition.status == TRUE

    def body(self) -> dict[str, Any]:
        """The status to send, without its empty parts, which cost the API server as much as full ones."""
        fields = self.model_dump(mode="json", by_alias=True, exclude_none=True)
        return {name: value for name, value in fields.items() if value not in ({}, [])}

    @property
    def finished(self) -> bool:
        """Whether the job has succeeded or finally failed."""
        return self.is_true("Succeeded") or self.is_true("Failed")
