"""PURE: the Prometheus metrics of trainer and rollout replicas. docs/reference/metrics.md is generated from them.

Ray exports them on the metrics port of each node, with the prefix `ray_`. Values of labels come from closed lists: the
phases below, and the numbers of the replicas.
"""

from dataclasses import dataclass
from typing import Literal

PREFIX = "ray_"
PHASES = ("generate", "reward", "wait", "update", "sync", "eval")


@dataclass(frozen=True, slots=True)
class ExportedMetric:
    """A metric.

    Attributes:
        name: without `PREFIX`.
        unit: seconds or bytes; empty for other values.
        text: the help text.
    """

    name: str
    kind: Literal["gauge", "counter"]
    unit: Literal["", "seconds", "bytes"]
    text: str
    labels: tuple[str, ...] = ()


STEP = ExportedMetric("omni_step", "gauge", "", "Last completed step of the run.")
STEPS = ExportedMetric("omni_steps", "gauge", "", "Steps of the whole run.")
REWARD = ExportedMetric("omni_reward_mean", "gauge", "", "Mean reward of the samples of the last step.")
VALIDATION_REWARD = ExportedMetric(
    "omni_validation_reward_mean", "gauge", "", "Mean reward of the held-out prompts at the last evaluation."
)
COLLAPSED = ExportedMetric(
    "omni_samples_collapsed", "gauge", "", "1 while the samples count as collapsed (warning SamplesCollapsed), else 0."
)
GENERATED = ExportedMetric("omni_samples_generated_total", "counter", "", "Samples generated and scored for training.")
TRAINED = ExportedMetric(
    "omni_samples_trained_total",
    "counter",
    "",
    "Samples in training batches. DPO trains on two samples of each prompt.",
)
OPTIMIZER_STEPS = ExportedMetric("omni_optimizer_steps_total", "counter", "", "Optimizer steps taken.")
SKIPPED_STEPS = ExportedMetric(
    "omni_optimizer_steps_skipped_total", "counter", "", "Optimizer steps skipped because the gradient was not finite."
)
CONSTANT_PROMPTS = ExportedMetric(
    "omni_prompts_constant_total", "counter", "", "Prompts whose training samples all had the same reward."
)
SAMPLES_LOST = ExportedMetric(
    "omni_samples_lost_total", "counter", "", "Training samples lost with their replica, and generated again."
)
REQUESTS_ABORTED = ExportedMetric(
    "omni_rollout_requests_aborted_total",
    "counter",
    "",
    "Requests for training samples that were aborted and repeated.",
)
PHASE_SECONDS = ExportedMetric(
    "omni_phase_seconds_total",
    "counter",
    "seconds",
    "Wall time of each phase of a step: generate includes scoring, reward is its wait for the slowest reward, wait is "
    "for samples generated ahead, sync is the weight update.",
    ("phase",),
)
OUTPUT_STEP = ExportedMetric(
    "omni_output_step", "gauge", "", "Step of the newest checkpoint whose results were sent to the store."
)
OUTPUT_FAILURES = ExportedMetric(
    "omni_output_failures_total", "counter", "", "Attempts to send a file to the store that failed; they are repeated."
)
PUBLISHED = ExportedMetric(
    "omni_weight_version_published",
    "gauge",
    "",
    "Weight version that the trainer last began to send to the replicas: the number of the step that made it.",
)
REPLICAS = ExportedMetric("omni_replicas", "gauge", "", "Standalone rollout replicas with the current weight version.")
REPLICAS_ADDED = ExportedMetric(
    "omni_replicas_added_total", "counter", "", "Standalone replicas that joined the run after its start."
)
REPLICAS_REMOVED = ExportedMetric(
    "omni_replicas_removed_total", "counter", "", "Standalone replicas that left because their node is being removed."
)
REPLICAS_LOST = ExportedMetric(
    "omni_replicas_lost_total", "counter", "", "Standalone replicas that failed, or whose node was lost."
)
QUEUED = ExportedMetric(
    "omni_rollout_samples_queued",
    "gauge",
    "",
    "Samples of the current batch that standalone replicas have not generated yet.",
)
JUDGE_QUEUED = ExportedMetric(
    "omni_reward_requests_queued",
    "gauge",
    "",
    "Largest number of requests that a judge with separate accelerators had not answered yet, in the last 5 seconds.",
)
SERVED = ExportedMetric(
    "omni_weight_version_served",
    "gauge",
    "",
    "Weight version that a replica's workers have all confirmed.",
    ("replica",),
)
RECEIVED_BYTES = ExportedMetric(
    "omni_weight_update_bytes_total",
    "counter",
    "bytes",
    "Bytes of the weights that the first worker of a replica received in updates that took effect.",
    ("replica",),
)
IN_FLIGHT = ExportedMetric(
    "omni_rollout_requests_in_flight",
    "gauge",
    "",
    "Requests that a replica has accepted and not answered, with those that wait while it sleeps.",
    ("replica",),
)
IDLE_SECONDS = ExportedMetric(
    "omni_rollout_idle_seconds_total",
    "counter",
    "seconds",
    "Time in which a replica had no request, asleep or awake; counted when the next request begins.",
    ("replica",),
)

# Only in runs that send their results to a store, use standalone replicas, or have a judge on dedicated accelerators.
OF_A_STORE = (OUTPUT_STEP, OUTPUT_FAILURES)
OF_STANDALONE_REPLICAS = (REPLICAS, REPLICAS_ADDED, REPLICAS_REMOVED, REPLICAS_LOST, QUEUED)
OF_A_JUDGE = (JUDGE_QUEUED,)
# Counters that have no series until they first count something.
OF_FAULTS = (SKIPPED_STEPS, CONSTANT_PROMPTS, SAMPLES_LOST, REQUESTS_ABORTED)
TRAINER = (
    STEP,
    STEPS,
    REWARD,
    VALIDATION_REWARD,
    COLLAPSED,
    GENERATED,
    TRAINED,
    OPTIMIZER_STEPS,
    *OF_FAULTS,
    PHASE_SECONDS,
    *OF_A_STORE,
    PUBLISHED,
    *OF_STANDALONE_REPLICAS,
    *OF_A_JUDGE,
)
ROLLOUT = (SERVED, RECEIVED_BYTES, IN_FLIGHT, IDLE_SECONDS)
