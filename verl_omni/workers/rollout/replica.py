"""`DiffusionOutput`, what a rollout server returns, and the registration of our replica with verl."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

SERVER_ADAPTER = "verl_omni.workers.rollout.vllm_rollout.server_adapter.ServerAdapter"


class DiffusionOutput(BaseModel):
    """One finished (or aborted) sample.

    Attributes:
        diffusion_output: pixels uint8 [C, H, W] or [T, C, H, W]; float32 for latents; empty when aborted.
        log_probs: float32 [T_sde], a log-probability for each recorded step, or None.
        stop_reason: `completed`, `aborted` or None.
        num_preempted: how often the engine set the request aside, where it says so.
        extra_fields: tensors of the trajectory and `global_steps`, the version of the weights used.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    diffusion_output: Any
    log_probs: Any | None = None
    stop_reason: str | None = None
    num_preempted: int | None = None
    extra_fields: dict[str, Any] = Field(default_factory=dict)


def register_vllm_omni() -> None:
    """Make verl find our replica and our weight sender under the name `vllm_omni`. Safe to repeat.

    verl has no public call for the second (`verl.workers.rollout.base._ROLLOUT_REGISTRY`). Both the driver
    and each actor need it.
    """
    from verl.workers.rollout import base
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    RolloutReplicaRegistry.register("vllm_omni", _load_replica)
    base._ROLLOUT_REGISTRY[("vllm_omni", "async")] = SERVER_ADAPTER


def _load_replica() -> type:
    from verl_omni.workers.rollout.vllm_rollout.vllm_omni_async_server import vLLMOmniReplica

    return vLLMOmniReplica


# The reference registers on import, and programs written against it rely on that.
register_vllm_omni()
