"""Replacement of the policy's LoRA adapter in vLLM-Omni's diffusion worker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from verl_omni.utils.vllm_omni import VLLM_LORA_INT_ID, VLLM_LORA_NAME, VLLM_LORA_PATH, OmniTensorLoRARequest
from verl_omni.weight_sync import adapter_checks
from verl_omni.weight_sync.errors import BindingIncomplete, WeightSyncError, error_text
from verl_omni.weight_sync.staging import summarize_names


def swap_adapter(
    worker: Any, tensors: dict[str, torch.Tensor], peft_config: dict[str, Any], *, base_synced: bool = False
) -> int:
    """Replace the policy's adapter, activate it at once, and read its matrices back from the engine.

    vLLM-Omni would activate it at the first request, and a failure would then affect only that request. The worker has
    one thread, so no request runs between the old adapter and the new one.

    Args:
        worker: has `lora_manager` (DiffusionLoRAManager) and `add_lora`.
        base_synced: whether the trainer has sent its base weights.

    Returns:
        The number of modules that the adapter was bound to.

    Raises:
        UnsupportedAdapter, IncompleteUpdate, BindingIncomplete: the adapter does not match the engine's model.
        WeightSyncError: the engine refused it. After any error, the old adapter is active again.
    """
    manager = worker.lora_manager
    if manager is None:
        raise WeightSyncError("the engine was started without LoRA: model.lora_rank must be positive")
    modules = adapter_checks.check_pairs(tensors, adapter_checks.check_settings(peft_config, base_synced=base_synced))
    request = OmniTensorLoRARequest(
        lora_name=VLLM_LORA_NAME, lora_int_id=VLLM_LORA_INT_ID, lora_path=VLLM_LORA_PATH,
        peft_config=peft_config, lora_tensors=tensors,
    )  # fmt: skip
    previous = manager._registered_adapters.get(VLLM_LORA_INT_ID)
    try:
        manager.remove_adapter(VLLM_LORA_INT_ID)
        if not worker.add_lora(request):
            raise WeightSyncError("the engine refused the adapter: add_lora returned False")
        share_layers(manager.pipeline, manager._lora_modules)
        loras = manager._registered_adapters[VLLM_LORA_INT_ID].loras
        # A pipeline may rename modules while it loads them. If it did not, none may be missing.
        if set(loras) <= modules and (lost := modules - set(loras)):
            raise BindingIncomplete(f"the engine did not load these LoRA modules: {summarize_names(lost)}")
        known = adapter_checks.lora_targets(manager._lora_modules, manager._packed_modules_mapping)
        adapter_checks.check_loras(loras, known)
        manager.set_active_adapter(request)
        bound = adapter_checks.check_binding(loras, known)
    except Exception as error:
        _restore_adapter(manager, previous, request)
        if isinstance(error, WeightSyncError):
            raise
        raise WeightSyncError(f"the engine refused the adapter: {error_text(error)}") from error
    # No file can reload the policy's adapter, so the cache must not evict it for another adapter.
    manager.pin_adapter(VLLM_LORA_INT_ID)
    return bound


def share_layers(pipeline: Any, layers: Mapping[str, Any]) -> None:
    """Put each LoRA layer in all places that its base layer has in the model.

    vLLM-Omni puts it in one of them. What computes Qwen-Image's `img_in` has it in another one, and would go on without
    the adapter.

    Args:
        layers: `<component>.<module path>` -> LoRA layer.
    """
    by_base = {id(layer.base_layer): layer for layer in layers.values()}
    wrappers = {id(layer) for layer in layers.values()}
    for component in {name.partition(".")[0] for name in layers}:
        for parent in getattr(pipeline, component).modules():
            if id(parent) in wrappers:
                continue
            for name, child in parent._modules.items():
                if id(child) in by_base:
                    parent._modules[name] = by_base[id(child)]


def _restore_adapter(manager: Any, previous: Any, request: OmniTensorLoRARequest) -> None:
    """Activate the previous adapter, or none if there was none."""
    manager.remove_adapter(VLLM_LORA_INT_ID)
    manager._reset_lora_layers()
    manager._active_adapter_id = None
    if previous is not None:
        manager._registered_adapters[VLLM_LORA_INT_ID] = previous
        manager.set_active_adapter(request)  # already registered, so only the request's id is used
        manager.pin_adapter(VLLM_LORA_INT_ID)
