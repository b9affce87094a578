"""LoRA adapters from memory, for vLLM-Omni."""

from .utils import (
    VLLM_LORA_INT_ID,
    VLLM_LORA_NAME,
    VLLM_LORA_PATH,
    OmniTensorLoRARequest,
    VLLMOmniHijack,
    load_tensor_adapter,
)

__all__ = [
    "VLLM_LORA_INT_ID",
    "VLLM_LORA_NAME",
    "VLLM_LORA_PATH",
    "OmniTensorLoRARequest",
    "VLLMOmniHijack",
    "load_tensor_adapter",
]
