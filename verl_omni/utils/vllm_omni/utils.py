"""`OmniTensorLoRARequest` and `VLLMOmniHijack`: LoRA requests with the adapter's tensors instead of a file path."""

import re
from collections.abc import Iterable
from typing import Any

import msgspec
import torch
from vllm_omni.lora.request import LoRARequest

from verl_omni.compat.versions import require

TESTED = frozenset({"0.30.0"})

# verl's name, id and path of the policy's adapter. There is no file at the path, and it is never opened.
VLLM_LORA_NAME = "123"
VLLM_LORA_INT_ID = 123
VLLM_LORA_PATH = "simon_lora_path"


class OmniTensorLoRARequest(LoRARequest):  # type: ignore[misc]
    """A LoRA request that contains the adapter.

    Attributes:
        peft_config: `PeftConfig.to_dict()` of the adapter.
        lora_tensors: `<module>.lora_A.weight` [r, in] and `<module>.lora_B.weight` [out, r] by name.
        lora_path: never opened, but must not be empty.
    """

    peft_config: dict[str, Any] | None = msgspec.field(default=None)
    lora_tensors: dict[str, Any] | None = msgspec.field(default=None)


def load_tensor_adapter(lora_request: Any, *, dtype: torch.dtype) -> tuple[Any, Any] | None:
    """Load a request that contains tensors: (LoRAModel, PEFTHelper), or None for a request that names files.

    The model holds a copy of each lora_B: vLLM multiplies it by its scale in place (`LoRALayerWeights.optimize`), so a
    request that is loaded twice would be scaled twice.
    """
    tensors = getattr(lora_request, "lora_tensors", None)
    if tensors is None:
        return None
    from vllm.lora.lora_model import LoRAModel
    from vllm.lora.peft_helper import PEFTHelper

    helper = PEFTHelper.from_dict(lora_request.peft_config)
    model = LoRAModel.from_lora_tensors(
        tensors={name: tensor.clone() if ".lora_B." in name else tensor for name, tensor in tensors.items()},
        peft_helper=helper,
        lora_model_id=lora_request.lora_int_id,
        device="cpu",
        dtype=dtype,
    )
    helper.target_modules = _to_pattern(model.loras)
    return model, helper


def _to_pattern(modules: Iterable[str]) -> str:
    """One pattern that matches exactly these modules, with or without the component that they are in.

    The settings' own targets are of checkpoints' names, which peft compares in another way than vLLM-Omni.
    """
    return rf"^(.*\.)?({'|'.join(map(re.escape, modules))})$"


class VLLMOmniHijack:
    """Makes `DiffusionLoRAManager` load tensor requests for any pipeline, and vLLM's manager load verl's.

    A pipeline may implement either of two methods:
        `map_lora_update_to_engine(tensors, peft_config) -> (tensors, peft_config)` renames the tensors;
        `_load_diffusion_lora_adapter(lora_request=, lora_path=, dtype=)`, of vLLM-Omni, builds the adapter.
    """

    _patched = False

    @staticmethod
    def hijack() -> None:
        """Patch once per process; safe to repeat.

        Raises:
            PatchOutdated: this was not tested with the installed version of vllm-omni.
        """
        if VLLMOmniHijack._patched:
            return
        require("vllm-omni", TESTED, "VLLMOmniHijack")
        from verl.utils.vllm import VLLMHijack
        from vllm_omni.diffusion.lora.manager import DiffusionLoRAManager

        VLLMHijack.hijack()  # an extension of a language model's workers may rely on it
        upstream = DiffusionLoRAManager._load_adapter

        def load(self: Any, lora_request: Any) -> tuple[Any, Any]:
            if not self._expected_lora_modules:
                raise ValueError("No supported LoRA modules found in the diffusion pipeline.")
            if getattr(lora_request, "lora_tensors", None) is not None:
                return _build_adapter(self, lora_request)
            if lora_request.lora_path == VLLM_LORA_PATH:
                # Upstream would look for this path on a model hub.
                raise LookupError("the policy's adapter is not loaded in this worker, and there is no file of it")
            return upstream(self, lora_request)

        DiffusionLoRAManager._load_adapter = load
        VLLMOmniHijack._patched = True


def _build_adapter(manager: Any, lora_request: OmniTensorLoRARequest) -> tuple[Any, Any]:
    """Build a tensor request's adapter: (LoRAModel with its scale applied, PEFTHelper)."""
    pipeline = manager.pipeline
    if callable(rename := getattr(pipeline, "map_lora_update_to_engine", None)):
        tensors, settings = rename(lora_request.lora_tensors, lora_request.peft_config)
        lora_request = msgspec.structs.replace(lora_request, lora_tensors=tensors, peft_config=settings)
    loaded = None
    if callable(build := getattr(pipeline, "_load_diffusion_lora_adapter", None)):
        loaded = build(lora_request=lora_request, lora_path=lora_request.lora_path, dtype=manager.dtype)
    model, helper = loaded or load_tensor_adapter(lora_request, dtype=manager.dtype)  # type: ignore[misc]
    for layer in model.loras.values():
        layer.optimize()
    return model, helper
