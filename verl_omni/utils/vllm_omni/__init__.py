"""LoRA adapters from memory, for vLLM-Omni."""

from .utils import OmniTensorLoRARequest, VLLMOmniHijack

__all__ = ["OmniTensorLoRARequest", "VLLMOmniHijack"]
