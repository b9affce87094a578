"""`spec.reward.scorers[].pool`: pods, accelerators and a Python environment for one scorer."""

from pydantic import Field

from omni_operator.api.base import Line, Rule, StrictModel

from .model import NO_HOME
from .platform import PoolScheduling
from .pod_template import PodTemplate
from .pods import Accelerator, Resources, SharedMemory


class ScorerPool(StrictModel):
    """Pods that run one scorer alone, in one process for each accelerator."""

    replicas: int = Field(
        default=1,
        ge=1,
        le=1024,
        description="Number of scorer pods. In a local run, all processes are on one machine.",
    )
    accelerator: Accelerator | None = Field(
        default=None,
        description="Accelerators of one scorer pod, each with a process of the scorer. Default: none; the pod has one "
        "process, on the CPU.",
    )
    python: Line | None = Field(
        default=None,
        description="Python interpreter of the processes, such as a virtual environment's; relative paths start "
        "at this file's folder. Default: the image's, or the local run's. See docs/reference/rewards.md.",
    )
    resources: Resources | None = Field(
        default=None,
        description="Requests and limits of a scorer pod; accelerators and sharedMemory are added. Default: requests "
        "of 1 CPU and 4Gi, no limits. Cluster only.",
    )
    shared_memory: SharedMemory | None = Field(
        default=None, description="/dev/shm of a scorer pod. Default: sizeLimit 2Gi. Cluster only."
    )
    scheduling: PoolScheduling | None = Field(default=None, description="Scheduling of the scorer pods. Cluster only.")
    pod_template: PodTemplate | None = Field(
        default=None,
        description="Strategic merge patch for the template of the scorer pods, such as another image, variables, or "
        "the volume with the model. Cluster only.",
    )

    cel = (Rule("self.python is None or not self.python.startswith('~')", "python", NO_HOME),)

    @property
    def accelerators(self) -> int:
        """Accelerators of all scorer pods."""
        return self.replicas * self.accelerator.count if self.accelerator else 0
