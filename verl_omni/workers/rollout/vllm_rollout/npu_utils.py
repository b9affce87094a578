"""Re-export: programs written for verl-omni name the worker extension for Ascend NPUs by this path."""

from verl_omni.workers.rollout.vllm_rollout.engine_worker.npu_extension import vLLMOmniNPUColocateWorkerExtension

__all__ = ["vLLMOmniNPUColocateWorkerExtension"]
