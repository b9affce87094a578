"""PURE: reasons that statuses, events and metrics use."""

from __future__ import annotations

from enum import Enum


class FailureReason(str, Enum):
    """Reasons of failed attempts: those of `spec.failurePolicy`, and `ChildDeleted`, which it cannot name."""

    IMAGE_PULL_FAILED = "ImagePullFailed"
    INVALID_CONFIG = "InvalidConfig"
    UNSCHEDULABLE = "Unschedulable"
    QUOTA_EXCEEDED = "QuotaExceeded"
    START_FAILED = "StartFailed"
    HEAD_LOST = "HeadLost"
    WORKER_LOST = "WorkerLost"
    PREEMPTED = "Preempted"
    OUT_OF_MEMORY = "OutOfMemory"
    ACCELERATOR_FAULT = "AcceleratorFault"
    COLLECTIVE_TIMEOUT = "CollectiveTimeout"
    WEIGHT_SYNC_FAILED = "WeightSyncFailed"
    OUTPUT_NOT_SENT = "OutputNotSent"
    APPLICATION_ERROR = "ApplicationError"
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    PRE_RUNNING_DEADLINE_EXCEEDED = "PreRunningDeadlineExceeded"
    CHILD_DELETED = "ChildDeleted"


class Action(str, Enum):
    """What the operator does after a failed attempt."""

    FAIL = "Fail"
    RETRY = "Retry"
    RETRY_IGNORE_LIMIT = "RetryIgnoreLimit"


class EventReason(str, Enum):
    """Reasons of events about a job."""

    ATTEMPT_CREATED = "AttemptCreated"
    ATTEMPT_FAILED = "AttemptFailed"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    SUSPENDING = "Suspending"
    SUSPENDED = "Suspended"
    RESUMED = "Resumed"
    INVALID_SPEC = "InvalidSpec"
    RECONCILE_ERROR = "ReconcileError"
    KUBERAY_MISSING = "KubeRayNotInstalled"
    REFUSED = "ChildRefused"
    QUOTA_EXCEEDED = "QuotaExceeded"
    NAME_TAKEN = "NameTaken"
    SERVER_FAILED = "ServerFailed"
    UNSCHEDULABLE = "Unschedulable"
    IMAGE_PULL_BACKOFF = "ImagePullBackOff"
    CLAIM_NOT_FOUND = "ClaimNotFound"
    CLAIM_NOT_BOUND = "ClaimNotBound"
    CONTAINER_CONFIG_ERROR = "CreateContainerConfigError"
    SIDECAR_NOT_RUNNING = "SidecarNotRunning"
    SAMPLES_COLLAPSED = "SamplesCollapsed"
    TRAINER_WARNING = "TrainerWarning"
    PROGRESS_STALLED = "ProgressStalled"
    PROGRESS_RESUMED = "ProgressResumed"
    WEIGHTS_BEHIND = "WeightsBehind"
    WEIGHTS_IN_SYNC = "WeightsInSync"
    RESULTS_ON_EMPTY_DIR = "ResultsOnEmptyDir"
    NO_VENDOR = "NoVendor"
    PARTIALLY_ADMITTED = "PartiallyAdmitted"
    ROLLOUT_POD_LOST = "RolloutPodLost"
    ROLLING_UPDATE = "RollingUpdate"
    ROLLED_BACK = "RolledBack"
    CHANGED_BY_OTHERS = "ChangedByOthers"
    PODS_UPDATED = "PodsUpdated"
    CHECKPOINT_SAVED = "CheckpointSaved"
    LEADER_ELECTED = "LeaderElected"  # about the Lease
