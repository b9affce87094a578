"""`DiffusionOutput`: one sample of a rollout server, at its import path in verl-omni."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class DiffusionOutput(BaseModel):
    """One finished (or aborted) sample.

    Attributes:
        diffusion_output: pixels uint8 [C, H, W] or [T, C, H, W]; float32 for latents; empty when aborted.
        log_probs: float32 [T_sde], a log-probability for each recorded step, or None.
        stop_reason: `completed`, `aborted` or None.
        num_preempted: how often the engine preempted the request, if it reports that.
        extra_fields: tensors of the trajectory and `global_steps`, the version of the weights used.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    diffusion_output: Any
    log_probs: Any | None = None
    stop_reason: str | None = None
    num_preempted: int | None = None
    extra_fields: dict[str, Any] = Field(default_factory=dict)
