"""LoRA adapters in the engine's worker: checks of each one that is loaded, replacement of the policy's."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from verl_omni.compat.versions import require
from verl_omni.utils import adapter_folder
from verl_omni.utils.vllm_omni import (
    VLLM_LORA_INT_ID,
    VLLM_LORA_NAME,
    VLLM_LORA_PATH,
    OmniTensorLoRARequest,
    load_tensor_adapter,
)
from verl_omni.utils.vllm_omni.utils import TESTED
from verl_omni.weight_sync import checks
from verl_omni.weight_sync.errors import (
    BindingIncomplete,
    UnsupportedAdapter,
    WeightSyncError,
    error_text,
    summarize_names,
)


def check_every_adapter() -> None:
    """Let vLLM-Omni check every adapter that it loads as the policy's, also one that a client names by a folder.

    vLLM-Omni 0.30 serves another adapter for one whose `alpha_pattern` it does not read, or whose rank is above its
    limit in the second request for it. Repeated calls change nothing.

    Raises:
        PatchOutdated: this was not tested with the installed version of vllm-omni.
    """
    require("vllm-omni", TESTED, "check_every_adapter")
    from vllm_omni.diffusion.lora.manager import DiffusionLoRAManager

    if hasattr(DiffusionLoRAManager, "add_unchecked_adapter"):
        return
    DiffusionLoRAManager.add_unchecked_adapter = DiffusionLoRAManager.add_adapter
    DiffusionLoRAManager.add_adapter = _add_adapter


def _add_adapter(manager: Any, request: Any) -> bool:
    if request.lora_int_id in manager._registered_adapters:
        return False
    is_file = getattr(request, "lora_tensors", None) is None and request.lora_path != VLLM_LORA_PATH
    try:
        added: bool = manager.add_unchecked_adapter(_read_files(request) if is_file else request)
        share_layers(manager.pipeline, manager._lora_modules)
        checks.check_loras(_loras(manager, request.lora_int_id), _targets(manager))
    except Exception as error:
        manager.remove_adapter(request.lora_int_id)  # vLLM-Omni registers an adapter before it can fail
        if is_file and isinstance(error, (ValueError, WeightSyncError)):
            raise UnsupportedAdapter(f"{adapter_folder.REFUSED}: {request.lora_path!r}: {error}") from error
        raise
    return added


def _read_files(request: Any) -> OmniTensorLoRARequest:
    tensors, settings = adapter_folder.read(Path(request.lora_path))
    checks.check_pairs(tensors, checks.check_settings(settings, base_synced=False))
    return OmniTensorLoRARequest(
        lora_name=request.lora_name,
        lora_int_id=request.lora_int_id,
        lora_path=request.lora_path,
        peft_config=settings,
        lora_tensors=tensors,
    )


def _loras(manager: Any, adapter_id: int) -> Mapping[str, Any]:
    loras: Mapping[str, Any] = manager._registered_adapters[adapter_id].loras
    return loras


def _targets(manager: Any) -> dict[str, checks.LoraTarget]:
    return checks.lora_targets(manager._lora_modules, manager._packed_modules_mapping)


def swap_adapter(
    worker: Any, tensors: dict[str, torch.Tensor], peft_config: dict[str, Any], *, base_synced: bool = False
) -> int:
    """Replace the policy's adapter, activate it at once, and read its matrices back from the engine.

    The engine would activate it at the first request, and a failure would then affect only that request. The worker has
    one thread, so no request runs between the old adapter and the new one.

    Args:
        worker: of vLLM-Omni, with `lora_manager` (DiffusionLoRAManager) and `add_lora`; or of vLLM, whose
            `model_runner.lora_manager` has a LRUCacheLoRAModelManager.
        tensors: peft's names, with or without its prefix.
        base_synced: whether the trainer has sent its base weights.

    Returns:
        The number of modules that the adapter was bound to.

    Raises:
        UnsupportedAdapter, IncompleteUpdate, BindingIncomplete: the adapter does not match the engine's model.
        WeightSyncError: the engine refused it. After any error, the old adapter is active again.
    """
    is_diffusion = hasattr(worker, "lora_manager")
    manager = worker.lora_manager if is_diffusion else getattr(worker.model_runner, "lora_manager", None)
    if manager is None:
        raise WeightSyncError("the engine was started without LoRA: model.lora_rank must be positive")
    if not is_diffusion:
        manager = manager._adapter_manager
        tensors = {name.removeprefix(adapter_folder.PEFT_PREFIX): tensor for name, tensor in tensors.items()}
    modules = checks.check_pairs(tensors, checks.check_settings(peft_config, base_synced=base_synced))
    request = OmniTensorLoRARequest(
        lora_name=VLLM_LORA_NAME,
        lora_int_id=VLLM_LORA_INT_ID,
        lora_path=VLLM_LORA_PATH,
        peft_config=peft_config,
        lora_tensors=tensors,
    )
    previous = manager._registered_adapters.get(VLLM_LORA_INT_ID)
    try:
        if is_diffusion:
            return _bind_diffusion_adapter(worker, request, modules)
        return _bind_language_adapter(manager, request, modules)
    except Exception as error:
        if is_diffusion:
            _restore_diffusion_adapter(manager, previous, request)
        else:
            _activate_language_adapter(manager, previous)
        if isinstance(error, WeightSyncError):
            raise
        raise WeightSyncError(f"the engine refused the adapter: {error_text(error)}") from error


def _bind_diffusion_adapter(worker: Any, request: OmniTensorLoRARequest, modules: set[str]) -> int:
    manager = worker.lora_manager
    manager.remove_adapter(VLLM_LORA_INT_ID)
    if not worker.add_lora(request):
        raise WeightSyncError("the engine refused the adapter: add_lora returned False")
    loras = _loras(manager, VLLM_LORA_INT_ID)
    # A pipeline may rename modules while it loads them. If it did not, none may be missing.
    if set(loras) <= modules:
        _check_all_loaded(modules, loras)
    manager.set_active_adapter(request)
    # No file can reload the policy's adapter, so the cache must not evict it for another adapter.
    manager.pin_adapter(VLLM_LORA_INT_ID)
    return checks.check_binding(loras, _targets(manager))


def _restore_diffusion_adapter(manager: Any, previous: Any, request: OmniTensorLoRARequest) -> None:
    """Activate the previous adapter, or none if there was none."""
    manager.remove_adapter(VLLM_LORA_INT_ID)
    manager._reset_lora_layers()
    manager._active_adapter_id = None
    if previous is not None:
        manager._registered_adapters[VLLM_LORA_INT_ID] = previous
        manager.set_active_adapter(request)  # already registered, so only the request's id is used
        manager.pin_adapter(VLLM_LORA_INT_ID)


def _bind_language_adapter(manager: Any, request: OmniTensorLoRARequest, modules: set[str]) -> int:
    loaded = load_tensor_adapter(request, dtype=manager.lora_config.lora_dtype)
    assert loaded is not None  # the request has tensors
    model, helper = loaded
    helper.validate_legal(manager.lora_config)
    loras = dict(model.loras)  # vLLM merges the matrices of fused layers
    _check_all_loaded(modules, loras)
    targets = checks.lora_targets(manager.modules, manager.packed_modules_mapping)
    checks.check_loras(loras, targets)
    _activate_language_adapter(manager, model)
    return checks.check_binding(loras, targets)


def _activate_language_adapter(manager: Any, model: Any) -> None:
    """Make this adapter, or none, the policy's."""
    if manager.get_adapter(VLLM_LORA_INT_ID) is not None:
        manager.remove_adapter(VLLM_LORA_INT_ID)
    if model is not None:
        manager.add_adapter(model)
        manager.activate_adapter(VLLM_LORA_INT_ID)


def _check_all_loaded(modules: set[str], loras: Mapping[str, Any]) -> None:
    if lost := modules - set(loras):
        raise BindingIncomplete(f"the engine did not load these LoRA modules: {summarize_names(lost)}")


def share_layers(pipeline: Any, layers: Mapping[str, Any]) -> None:
    """Put each LoRA layer in all places that its base layer has in the model.

    vLLM-Omni puts it in only one place. Qwen-Image's `img_in` is called through another one, and would not use the
    adapter.

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
