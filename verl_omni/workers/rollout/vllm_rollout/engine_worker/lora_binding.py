"""Replacement of the policy's LoRA adapter in vLLM-Omni's diffusion worker."""

from __future__ import annotations

from typing import Any

import torch

from verl_omni.utils.vllm_omni import VLLM_LORA_INT_ID, VLLM_LORA_NAME, VLLM_LORA_PATH, OmniTensorLoRARequest
from verl_omni.weight_sync import adapter_checks
from verl_omni.weight_sync.errors import BindingIncomplete, WeightSyncError, error_text
from verl_omni.weight_sync.staging import summarize_names


def swap_adapter(
    worker: Any, tensors: dict[str, torch.Tensor], peft_config: dict[str, Any], *, base_synced: bool = False
) -> int:
    """Replace the policy's adapter, attach it at once, and read back from the engine that it is there.

    vLLM-Omni would attach it at the first request, where a failure is that request's alone. The worker has one
    thread, so no request runs between the old adapter and the new one.

    Args:
        worker: has `lora_manager` (DiffusionLoRAManager) and `add_lora`.
        base_synced: whether the trainer sent its base weights before.

    Returns:
        How many modules it was attached to.

    Raises:
        UnsupportedAdapter, IncompleteUpdate, BindingIncomplete: the adapter cannot be what was trained here.
        WeightSyncError: the engine refused it. Whatever is raised, the old adapter is in place.
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
            raise WeightSyncError("the engine did not take the adapter")
        loras = manager._registered_adapters[VLLM_LORA_INT_ID].loras
        # A pipeline may rename modules on the way; where it does not, none may get lost.
        if set(loras) <= modules and (lost := modules - set(loras)):
            raise BindingIncomplete(f"the engine left out LoRA modules: {summarize_names(lost)}")
        known = adapter_checks.lora_targets(manager._lora_modules, manager._packed_modules_mapping)
        adapter_checks.check_loras(loras, known)
        manager.set_active_adapter(request)
        bound = adapter_checks.check_binding(loras, known)
    except Exception as error:
        _put_back(manager, previous, request)
        if isinstance(error, WeightSyncError):
            raise
        raise WeightSyncError(f"the engine refused the adapter: {error_text(error)}") from error
    # No file can reload the policy's adapter, so the cache must not evict it for another adapter.
    manager.pin_adapter(VLLM_LORA_INT_ID)
    return bound


def _put_back(manager: Any, previous: Any, request: OmniTensorLoRARequest) -> None:
    """Serve the adapter that served before, or none if there was none."""
    manager.remove_adapter(VLLM_LORA_INT_ID)
    manager._reset_lora_layers()
    manager._active_adapter_id = None
    if previous is not None:
        manager._registered_adapters[VLLM_LORA_INT_ID] = previous
        manager.set_active_adapter(request)  # registered, so only its number matters
        manager.pin_adapter(VLLM_LORA_INT_ID)
