"""Re-export: programs written for verl-omni name the engine's worker extension by this path."""

from verl_omni.utils.vllm_omni import VLLM_LORA_INT_ID, VLLM_LORA_NAME, VLLM_LORA_PATH
from verl_omni.weight_sync.names import make_update_zmq_handle, make_update_zmq_id
from verl_omni.workers.rollout.vllm_rollout.engine_worker.worker_extension import vLLMOmniColocateWorkerExtension

__all__ = [
    "VLLM_LORA_INT_ID",
    "VLLM_LORA_NAME",
    "VLLM_LORA_PATH",
    "make_update_zmq_handle",
    "make_update_zmq_id",
    "vLLMOmniColocateWorkerExtension",
]
