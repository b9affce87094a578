"""`TokenWorkerExtension`: weight updates in the engine's worker of a language model."""

from __future__ import annotations

from typing import Any

import torch
from typing_extensions import override

from verl_omni.utils.vllm_omni import (
    VLLM_LORA_INT_ID,
    VLLM_LORA_NAME,
    VLLM_LORA_PATH,
    OmniTensorLoRARequest,
    load_tensor_adapter,
)
from verl_omni.weight_sync import adapter_checks
from verl_omni.weight_sync.errors import BindingIncomplete, PartialWeights, WeightSyncError, error_text, summarize_names
from verl_omni.weight_sync.full_weights import LanguageModelUpdate
from verl_omni.weight_sync.names import strip_peft_prefix
from verl_omni.weight_sync.transfer import UPDATE_DEADLINE_SECONDS
from verl_omni.workers.rollout.vllm_rollout.engine_worker.weight_receiver import WeightReceiver


class TokenWorkerExtension(WeightReceiver):
    """Mixed into the engine's worker. All methods run in the worker's only thread, between steps.

    `vLLMOmniColocateWorkerExtension` does the same, and also imports the engine of diffusion models.
    """

    model_config: Any

    @override
    def note_weights_version(self, global_steps: int | None) -> None:
        """Do nothing: the server attaches the version to outputs of a language model."""

    def update_weights_from_ipc(
        self,
        peft_config: dict[str, Any] | None = None,
        base_sync_done: bool = False,
        use_shm: bool = False,
        zmq_update_id: str | None = None,
        deadline: float = UPDATE_DEADLINE_SECONDS,
        global_steps: int | None = None,
        stage_adapter: bool = False,
    ) -> dict[str, Any]:
        """Receive an adapter (with `peft_config` and `base_sync_done`) or full weights from the trainer.

        The server calls this while no request is in flight.

        Args:
            use_shm: verl's flag; ignored, because the sender's first message says where the buffer is.
            global_steps: version of the weights; ignored, because the server tracks it.
            stage_adapter: only receive an adapter; `commit_adapter` serves it.

        Returns:
            `tensors` (number sent), `buckets`, `bytes`, `lora` (bool), `bound` (number of modules that the adapter was
            bound to, or of parameters that were written; not of a staged adapter).

        Raises:
            PartialWeights: old and new weights are mixed until a full update succeeds.
            WeightSyncError: the update did not take effect, and the old weights keep serving.
        """
        config = self._adapter_config(peft_config, base_sync_done)
        return self._receive_update(config, zmq_update_id, deadline, global_steps, stage_adapter)

    @override
    def _swap_adapter(self, tensors: dict[str, torch.Tensor], config: dict[str, Any]) -> int:
        return swap_worker_adapter(self, tensors, config)

    @override
    def _receive_full(self, handle: str, deadline: float) -> dict[str, Any]:
        return receive_full(self, handle, deadline)


def swap_worker_adapter(worker: Any, tensors: dict[str, torch.Tensor], config: dict[str, Any]) -> int:
    """Replace the policy's adapter in a worker of vLLM, see `swap_language_model_adapter`.

    Raises:
        WeightSyncError: also if the engine was started without LoRA.
    """
    manager = getattr(worker.model_runner, "lora_manager", None)
    if manager is None:
        raise WeightSyncError("the engine was started without LoRA: model.lora_rank must be positive")
    return swap_language_model_adapter(manager._adapter_manager, tensors, config, base_synced=worker._base_synced)


def receive_full(worker: Any, handle: str, deadline: float) -> dict[str, Any]:
    """Receive all weights in a worker of vLLM, and write them bucket by bucket.

    Returns:
        The reply of `TokenWorkerExtension.update_weights_from_ipc`.

    Raises:
        PartialWeights: old and new weights are mixed until a full update succeeds.
    """
    from vllm.model_executor.model_loader.utils import process_weights_after_loading

    model = worker.model_runner.get_model()
    update = LanguageModelUpdate(model)
    try:
        sent, counts = worker._receive_buckets(update.load, handle, deadline)
        written = update.finish()
        process_weights_after_loading(model, worker.model_config, worker.device)
    except BaseException as error:
        if update.started:
            raise PartialWeights(
                f"a full weight update failed part-way, so old and new weights are mixed: {error_text(error)}"
            ) from error
        raise
    worker._base_synced = True
    return {"tensors": len(sent), **counts, "lora": False, "bound": written}


def swap_language_model_adapter(
    manager: Any, tensors: dict[str, torch.Tensor], peft_config: dict[str, Any], *, base_synced: bool = False
) -> int:
    """Replace the policy's adapter, activate it at once, and read its matrices back from the engine.

    Args:
        manager: vLLM's `LRUCacheLoRAModelManager`.
        tensors: peft's names, with or without its prefix.
        base_synced: whether the trainer has sent its base weights.

    Returns:
        The number of modules that the adapter was bound to.

    Raises:
        UnsupportedAdapter, IncompleteUpdate, BindingIncomplete: the adapter does not match the engine's model.
        WeightSyncError: the engine refused it. After any error, the old adapter is active again.
    """
    named = {strip_peft_prefix(name): tensor for name, tensor in tensors.items()}
    modules = adapter_checks.check_pairs(named, adapter_checks.check_settings(peft_config, base_synced=base_synced))
    request = OmniTensorLoRARequest(
        lora_name=VLLM_LORA_NAME,
        lora_int_id=VLLM_LORA_INT_ID,
        lora_path=VLLM_LORA_PATH,
        peft_config=peft_config,
        lora_tensors=named,
    )
    previous = manager.get_adapter(VLLM_LORA_INT_ID)
    try:
        loaded = load_tensor_adapter(request, dtype=manager.lora_config.lora_dtype)
        assert loaded is not None  # the request has tensors
        model, helper = loaded
        helper.validate_legal(manager.lora_config)
        loras = dict(model.loras)  # vLLM merges the matrices of fused layers
        if lost := modules - set(loras):
            raise BindingIncomplete(f"the engine did not load these LoRA modules: {summarize_names(lost)}")
        known = adapter_checks.lora_targets(manager.modules, manager.packed_modules_mapping)
        adapter_checks.check_loras(loras, known)
        _activate(manager, model)
        return adapter_checks.check_binding(loras, known)
    except Exception as error:
        _activate(manager, previous)
        if isinstance(error, WeightSyncError):
            raise
        raise WeightSyncError(f"the engine refused the adapter: {error_text(error)}") from error


def _activate(manager: Any, model: Any) -> None:
    """Make this adapter, or none, the policy's."""
    if manager.get_adapter(VLLM_LORA_INT_ID) is not None:
        manager.remove_adapter(VLLM_LORA_INT_ID)
    if model is not None:
        manager.add_adapter(model)
        manager.activate_adapter(VLLM_LORA_INT_ID)
