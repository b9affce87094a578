"""PURE: what each condition of a job means: its wanted status, how to look closer."""

from __future__ import annotations

from dataclasses import dataclass

from omni_operator.api.names import JOB_LABEL
from omni_operator.api.status import RECONCILE_ERROR, ConditionType

SELECT = f"--selector={JOB_LABEL}=NAME"
STATUS = "kubectl get drl NAME --output=yaml"
PODS = f"kubectl describe pods {SELECT}"
LOG = "drl logs NAME"
EVENTS = "kubectl events --for=diffusionrljob/NAME"


@dataclass(frozen=True, slots=True)
class ConditionExplanation:
    """What a condition tells.

    Attributes:
        wanted: its status while nothing is wrong.
        meaning: what it means when it is True.
    """

    wanted: str
    meaning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What a reason means, where it is shown, how to look closer and what to do.

    Attributes:
        shown: `Type=Status` of conditions, `failure` (`status.failures`), `event`, `warning` (`status.warnings`).
        look: a command; NAME is the name of the job.
        action: what to do; empty if nothing is wrong.
    """

    shown: tuple[str, ...]
    meaning: str
    look: str = ""
    action: str = ""


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
