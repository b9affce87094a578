"""PURE: the table of reasons: what each means, where it is shown, what to look at and what to do.

`drl why`, docs/operate/troubleshooting.md, events, warnings and metrics read it. A new reason is a row here or
in `problems`, the place in the code that gives it, and a test.
"""

from dataclasses import dataclass

from omni_operator.api.status import RECONCILE_ERROR, ConditionType

from .names import Reason
from .problems import FAILURES, WAITING, WARNINGS


@dataclass(frozen=True, slots=True)
class ConditionExplanation:
    """What a condition tells.

    Attributes:
        wanted: its status while nothing is wrong.
        meaning: what it means when it is True.
    """

    wanted: str
    meaning: str


CONDITIONS: dict[ConditionType | str, ConditionExplanation] = {
    "Admitted": ConditionExplanation("True", "the attempt may run: its RayJob exists and no queue holds it back"),
    "Ready": ConditionExplanation("True", "all pods of the attempt are ready, or the job needs none"),
    "WeightsInSync": ConditionExplanation(
        "True", "every engine generates with weights that are within `spec.rollout.staleness` of the trainer's"
    ),
    "Updated": ConditionExplanation("True", "the running attempt has the current spec"),
    "ProgressStalled": ConditionExplanation("False", "the trainer has not reported for longer than expected"),
    "Suspended": ConditionExplanation("False", "`spec.suspend` is true and the pods are deleted"),
    "Succeeded": ConditionExplanation("True", "the training finished; Unknown until the job ends"),
    "Failed": ConditionExplanation("False", "the job ended without success, and no other attempt follows"),
    "Stalled": ConditionExplanation("False", "the job has failed, or waits until its invalid spec is corrected"),
    "ResultsKept": ConditionExplanation(
        "True", "checkpoints, adapter and report are on a volume that outlives the pods, or results are sent elsewhere"
    ),
    "OutputSent": ConditionExplanation("True", "the newest results are where `spec.output` says"),
    "AcceleratorChosen": ConditionExplanation("True", "the job names its accelerator; the reason is the vendor"),
    "RolloutsScaled": ConditionExplanation(
        "True", "`spec.rollout.autoscaling` finds as many rollout pods as the waiting samples need; Unknown without it"
    ),
    "RewardsScaled": ConditionExplanation(
        "True",
        "`spec.reward.model.autoscaling` finds as many reward pods as the waiting requests need; Unknown without it",
    ),
    RECONCILE_ERROR: ConditionExplanation("absent", "a pass of the operator over this job failed; it is repeated"),
}

# The job is as it should be.
NORMAL = {
    "ChildUnsuspended": Reason(("Admitted=True",), "The attempt may run."),
    "PartiallyAdmitted": Reason(
        ("Admitted=True", "event"),
        "The queue had no room for all rollout pods, and admitted the attempt with fewer, but no fewer than "
        "`spec.rollout.minReplicas`. The message has both numbers.",
    ),
    "TrainerAndRolloutsServing": Reason(("Ready=True",), "All pods are ready."),
    "RolloutsMissing": Reason(("Ready=True",), "Rollout pods are missing, but not too many: the run continues."),
    "JudgesMissing": Reason(
        ("Ready=True",), "Reward pods are missing, but not all: the others answer their questions."
    ),
    "WithinLimits": Reason(
        ("RolloutsScaled=True", "RewardsScaled=True"),
        "There are as many pods as the samples or requests that wait need.",
    ),
    "NotAutoscaled": Reason(
        ("RolloutsScaled=Unknown", "RewardsScaled=Unknown"),
        "`spec.rollout` or `spec.reward.model` has no `autoscaling`.",
    ),
    "InSync": Reason(("WeightsInSync=True",), "All engines have weights that are new enough."),
    "AsRequested": Reason(("Updated=True",), "The running attempt has the current spec."),
    "RollingUpdate": Reason(("Updated=False", "event"), "Pods are being replaced by pods of the current spec."),
    "PodsUpdated": Reason(("event",), "All rollout and reward pods have the current spec, and serve."),
    "StepAdvancing": Reason(("ProgressStalled=False",), "The trainer reports."),
    "NotRequested": Reason(("Suspended=False",), "`spec.suspend` is false."),
    "NoFailure": Reason(("Failed=False", "Stalled=False"), "The job has not failed."),
    "VolumeMounted": Reason(("ResultsKept=True",), "Results are on a volume that outlives the pods."),
    "OutputGiven": Reason(("ResultsKept=True",), "Results are sent to `spec.output.url`; checkpoints are lost."),
    "Sent": Reason(("OutputSent=True",), "The newest results were sent; the message says which, and where they are."),
    "NothingSent": Reason(("OutputSent=Unknown",), "The trainer has sent nothing yet."),
    "NoOutput": Reason(("OutputSent=Unknown",), "The job has no `spec.output`."),
    "AttemptSucceeded": Reason(("Succeeded=True",), "The training finished."),
    "Finished": Reason(("Admitted=False", "Ready=True"), "The job succeeded; nothing is waiting to be admitted."),
    "AttemptCreated": Reason(
        ("Admitted=Unknown", "Succeeded=Unknown", "event"), "The RayJob of an attempt was created."
    ),
    "Starting": Reason(("Ready=False", "Succeeded=Unknown"), "The pods of the attempt start."),
    "Running": Reason(("Succeeded=Unknown", "event"), "Ray runs the trainer; the message has its phase."),
    "BetweenAttempts": Reason(
        ("Admitted=Unknown", "Ready=False", "Succeeded=Unknown"),
        "Objects of the last attempt are being deleted, or the pause before the next one lasts.",
    ),
    "NotRunning": Reason(("WeightsInSync=Unknown", "ProgressStalled=Unknown"), "Known only while the trainer runs."),
    "NoReports": Reason(
        ("WeightsInSync=Unknown", "ProgressStalled=Unknown", "RolloutsScaled=Unknown", "RewardsScaled=Unknown"),
        "The trainer has not reported yet. It never does with `reports.enabled=false` of the chart.",
    ),
    "ReplicasUnknown": Reason(("WeightsInSync=Unknown",), "No engine has reported its version yet."),
    "CheckpointRequested": Reason(("Suspended=Unknown",), "The trainer saves a checkpoint before it is suspended."),
    "Stopping": Reason(("Suspended=Unknown",), "The pods are being deleted."),
    "Suspending": Reason(
        ("Admitted=False", "Ready=False", "Succeeded=Unknown", "event"), "The job is being suspended."
    ),
    "Suspended": Reason(
        ("Suspended=True", "Admitted=False", "Ready=True", "Succeeded=Unknown", "event"),
        "The job is suspended; `drl resume NAME` starts it, from the newest checkpoint if there is one.",
    ),
    "Resumed": Reason(("event",), "`spec.suspend` became false."),
    "CheckpointSaved": Reason(("event",), "The checkpoint for a suspension is complete."),
    "ProgressResumed": Reason(("event",), "The trainer reports again."),
    "WeightsInSync": Reason(("event",), "All engines have the trainer's weights again."),
    "Succeeded": Reason(("event",), "The job succeeded."),
    "LeaderElected": Reason(("event",), "Another replica of the operator leads; the event is about the Lease."),
}

REASONS = {**WAITING, **FAILURES, **WARNINGS, **NORMAL}


def reasons_shown(place: str) -> frozenset[str]:
    """Names of all reasons that appear in a place, such as `event` or `Ready=False`."""
    return frozenset(name for name, row in REASONS.items() if place in row.shown)
