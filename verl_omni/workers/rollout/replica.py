"""Registration of the vLLM-Omni replica and its weight sender with verl, on import.

`DiffusionOutput` is exported here because programs written for verl-omni import it from this path.
"""

from __future__ import annotations

from verl_omni.workers.rollout.diffusion_output import DiffusionOutput

__all__ = ["SERVER_ADAPTER", "DiffusionOutput", "register_vllm_omni"]

SERVER_ADAPTER = "verl_omni.workers.rollout.vllm_rollout.training_worker.server_adapter.ServerAdapter"


def register_vllm_omni() -> None:
    """Register the replica and the weight sender under the name `vllm_omni`. Safe to repeat.

    verl has no public call for the second (`verl.workers.rollout.base._ROLLOUT_REGISTRY`). Both the driver
    and each training worker need it.
    """
    from verl.workers.rollout import base
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    RolloutReplicaRegistry.register("vllm_omni", _load_replica)
    base._ROLLOUT_REGISTRY[("vllm_omni", "async")] = SERVER_ADAPTER


def _load_replica() -> type:
    from verl_omni.workers.rollout.vllm_rollout.driver.replica_handle import vLLMOmniReplica

    return vLLMOmniReplica


# verl-omni registers on import, and programs written for it rely on that.
register_vllm_omni()
