"""`OmniTensorLoRARequest` and `VLLMOmniHijack`: an adapter's tensors travel in the request, not through files."""

from __future__ import annotations

from typing import Any

import torch
from msgspec import field
from vllm_omni.lora.request import LoRARequest

from verl_omni.compat.versions import require

TESTED = frozenset({"0.28.0"})


class OmniTensorLoRARequest(LoRARequest):  # type: ignore[misc]
    """A LoRA request that carries the adapter.

    Attributes:
        peft_config: `PeftConfig.to_dict()` of the adapter.
        lora_tensors: `<module>.lora_A.weight` [r, in] and `<module>.lora_B.weight` [out, r] by name.
        lora_path: never opened, and must not be empty.
    """

    peft_config: dict[str, Any] | None = field(default=None)
    lora_tensors: dict[str, Any] | None = field(default=None)


def load_tensor_adapter(lora_request: Any, *, dtype: torch.dtype) -> tuple[Any, Any] | None:
    """(LoRAModel, PEFTHelper) of a request that carries tensors; None for one that names files."""
    tensors = getattr(lora_request, "lora_tensors", None)
    if tensors is None:
        return None
    from vllm.lora.lora_model import LoRAModel
    from vllm.lora.peft_helper import PEFTHelper

    helper = PEFTHelper.from_dict(lora_request.peft_config)
    model = LoRAModel.from_lora_tensors(
        tensors=tensors, peft_helper=helper, lora_model_id=lora_request.lora_int_id, device="cpu", dtype=dtype
    )
    return model, helper


class VLLMOmniHijack:
    """Lets `DiffusionLoRAManager` load tensor requests for any pipeline, with or without the hook for it."""

    _patched = False

    @staticmethod
    def hijack() -> None:
        """Patch once per process; safe to repeat.

        Raises:
            PatchOutdated: vllm-omni is installed in a version that this was not tested on.
        """
        if VLLMOmniHijack._patched:
            return
        require("vllm-omni", TESTED, "VLLMOmniHijack")
        from vllm_omni.diffusion.lora.manager import DiffusionLoRAManager

        upstream = DiffusionLoRAManager._load_adapter

        def load(self: Any, lora_request: Any) -> tuple[Any, Any]:
            if getattr(lora_request, "lora_tensors", None) is None:
                return upstream(self, lora_request)
            if not self._expected_lora_modules:
                raise ValueError("No supported LoRA modules found in the diffusion pipeline.")
            loaded = load_tensor_adapter(lora_request, dtype=self.dtype)
            assert loaded is not None  # it carries tensors
            for layer in loaded[0].loras.values():
                layer.optimize()
            return loaded

        DiffusionLoRAManager._load_adapter = load
        VLLMOmniHijack._patched = True
