"""`spec.reward.model`: a vision-language judge that the job serves."""

from typing import Literal

from pydantic import Field

from omni_operator.api.base import Line, Rule, StrictModel, separate_only

from .autoscaling import JudgeAutoscaling, autoscaling_rules
from .model import MODEL_ID, NO_HOME, NO_URL
from .platform import PoolScheduling
from .pod_template import PodTemplate
from .pods import Accelerator, PodReplacement, Resources, SharedMemory

COLOCATED = "must not be given with placement Colocated: the judge runs in the trainer's pods; write Separate"
OF_OWN_PODS = ("autoscaling", "updateStrategy", "accelerator", "resources", "sharedMemory", "scheduling", "podTemplate")
ALL_PODS = "must be 1 with placement Colocated: the judge uses all accelerators of the trainer; write Separate"


class JudgeModel(StrictModel):
    """A vision-language model, served by vLLM, that scorers without a base_url ask."""

    base: Line = Field(
        description="The model: a folder, relative to the folder of this file, or a Hugging Face model id, "
        "'owner/name'. Every pod downloads an id, into spec.model.cache if given; a local run reads it from the hub "
        "cache."
    )
    tensor_parallel_size: int = Field(
        default=1, ge=1, le=64, description="Accelerators of one replica; each pod or machine has as many as fit."
    )
    placement: Literal["Colocated", "Separate"] = Field(
        default="Colocated",
        description="Colocated: on the trainer's accelerators, where it sleeps but for the scoring of a batch. "
        "Separate: in reward pods, on their accelerators, where it scores while samples are generated.",
    )
    replicas: int = Field(
        default=1,
        ge=1,
        le=1024,
        description="Number of reward pods, which may change while the job runs. In a local "
        "run, all accelerators are of one machine. Separate only.",
    )
    autoscaling: JudgeAutoscaling | None = Field(
        default=None,
        description="Changes the number of reward pods of the running attempt, which starts with replicas. Separate "
        "and cluster only.",
    )
    update_strategy: PodReplacement | None = Field(
        default=None,
        description="How reward pods are replaced when resources, sharedMemory, scheduling or podTemplate change while "
        "an attempt runs. Default: one at a time. Separate and cluster only.",
    )
    accelerator: Accelerator | None = Field(
        default=None, description="Accelerators of one reward pod. Default: the trainer's. Separate only."
    )
    resources: Resources | None = Field(
        default=None,
        description="Requests and limits of a reward pod; accelerators and sharedMemory are added. Default: requests "
        "of 1 CPU and 4Gi, no limits. Separate and cluster only.",
    )
    shared_memory: SharedMemory | None = Field(
        default=None, description="/dev/shm of a reward pod. Default: sizeLimit 2Gi. Separate and cluster only."
    )
    scheduling: PoolScheduling | None = Field(
        default=None, description="Scheduling of the reward pods. Separate and cluster only."
    )
    pod_template: PodTemplate | None = Field(
        default=None,
        description="Strategic merge patch for the template of the reward pods, such as the volume with the model. "
        "Separate and cluster only.",
    )

    cel = (
        Rule("not self.base.startswith('~')", "base", NO_HOME),
        Rule("not contains(self.base, '://')", "base", NO_URL, f"{{self.base}} is not supported: {NO_URL}"),
        Rule(
            "self.replicas == 1 or self.placement == 'Separate'",
            "replicas",
            ALL_PODS,
            f"is {{self.replicas}}: {ALL_PODS}",
        ),
        *autoscaling_rules("spec.reward.model", "kubectl edit"),
        *separate_only(COLOCATED, *OF_OWN_PODS),
    )

    @property
    def separate(self) -> bool:
        """Whether the judge has separate pods."""
        return self.placement == "Separate"

    @property
    def base_is_folder(self) -> bool:
        """Whether `base` names a folder and not a model id."""
        return MODEL_ID.match(self.base) is None
