"""`TokenWorkerExtension`: the end of a weight update in the engine's worker of a language model."""

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
from verl_omni.weight_sync.errors import BindingIncomplete, PartialWeights, WeightSyncError, error_text
from verl_omni.weight_sync.full_weights import LanguageModelUpdate
from verl_omni.weight_sync.names import strip_peft_prefix
from verl_omni.weight_sync.staging import summarize_names
from verl_omni.weight_sync.transfer import UPDATE_DEADLINE_SECONDS
from verl_omni.workers.rollout.vllm_rollout.engine_worker.weight_receiver import WeightReceiver


class TokenWorkerExtension(WeightReceiver):
    """Mixed into the engine's worker. Everything here runs in the worker's one thread, between steps.

    `vLLMOmniColocateWorkerExtension` overrides methods of its worker, which vLLM does not allow.
    """

    model_config: Any

    def note_weights_version(self, global_steps: int | None) -> None:
        """The server itself stamps what a language model writes."""

    def update_weights_from_ipc(
        self,
        peft_config: dict[str, Any] | None = None,
        base_sync_done: bool = False,
        use_shm: bool = False,
        zmq_update_id: str | None = None,
        deadline: float = UPDATE_DEADLINE_SECONDS,
        global_steps: int | None = None,
    ) -> dict[str, Any]:
        """Take an adapter (with `peft_config` and `base_sync_done`) or all weights from the trainer.

        The server calls this while no request is being answered.

        Args:
            use_shm: verl's flag; the sender's first message says the same, and is believed.
            global_steps: version of the weights, which the server notes.

        Returns:
            `tensors` (number sent), `buckets`, `lora` (bool), `bound`: modules that the adapter was attached to,
            or parameters that were written.

        Raises:
            PartialWeights: some weights are new, some old; only an update of all weights mends it.
            WeightSyncError: it did not take effect, and what served before goes on serving.
        """
        return self._take(self._config_of_update(peft_config), base_sync_done, zmq_update_id, deadline)

    @override
    def _swap(self, tensors: dict[str, torch.Tensor], config: dict[str, Any]) -> int:
        manager = getattr(self.model_runner, "lora_manager", None)
        if manager is None:
            raise WeightSyncError("the engine was started without LoRA: model.lora_rank must be positive")
        return swap_adapter(manager._adapter_manager, tensors, config, base_synced=self._base_synced)

    @override
    def _take_full(self, handle: str, deadline: float) -> dict[str, Any]:
        from vllm.model_executor.model_loader.utils import process_weights_after_loading

        model = self.model_runner.get_model()
        update = LanguageModelUpdate(model)
        try:
            sent, buckets = self._receive(update.load, handle, deadline)
            written = update.finish()
            process_weights_after_loading(model, self.model_config, self.device)
        except BaseException as error:
            if update.started:
                raise PartialWeights(f"the update of all weights broke off: {error_text(error)}") from error
            raise
        self._base_synced = True
        return {"tensors": len(sent), "buckets": buckets, "lora": False, "bound": written}


def swap_adapter(
    manager: Any, tensors: dict[str, torch.Tensor], peft_config: dict[str, Any], *, base_synced: bool = False
) -> int:
    """Replace the policy's adapter, attach it at once, and read back from the engine that it is there.

    Args:
        manager: vLLM's `LRUCacheLoRAModelManager`.
        tensors: named as peft names them, with or without its prefix.
        base_synced: whether the trainer sent its base weights before.

    Returns:
        How many modules it was attached to.

    Raises:
        UnsupportedAdapter, IncompleteUpdate, BindingIncomplete: the adapter cannot be what was trained here.
        WeightSyncError: the engine refused it. Whatever is raised, the old adapter is in place.
    """
    named = {strip_peft_prefix(name): tensor for name, tensor in tensors.items()}
    modules = adapter_checks.check_pairs(named, adapter_checks.check_settings(peft_config, base_synced=base_synced))
    request = OmniTensorLoRARequest(
        lora_name=VLLM_LORA_NAME, lora_int_id=VLLM_LORA_INT_ID, lora_path=VLLM_LORA_PATH,
        peft_config=peft_config, lora_tensors=named,
    )  # fmt: skip
    previous = manager.get_adapter(VLLM_LORA_INT_ID)
    try:
        loaded = load_tensor_adapter(request, dtype=manager.lora_config.lora_dtype)
        assert loaded is not None  # the request has tensors
        model, helper = loaded
        helper.validate_legal(manager.lora_config)
        loras = dict(model.loras)  # vLLM merges those of fused layers into one
        if lost := modules - set(loras):
            raise BindingIncomplete(f"the engine left out LoRA modules: {summarize_names(lost)}")
        known = adapter_checks.lora_targets(manager.modules, manager.packed_modules_mapping)
        adapter_checks.check_loras(loras, known)
        _serve(manager, model)
        return adapter_checks.check_binding(loras, known)
    except Exception as error:
        _serve(manager, previous)
        if isinstance(error, WeightSyncError):
            raise
        raise WeightSyncError(f"the engine refused the adapter: {error_text(error)}") from error


def _serve(manager: Any, model: Any) -> None:
    """Have this adapter, or none, in the place of the policy's."""
    if manager.get_adapter(VLLM_LORA_INT_ID) is not None:
        manager.remove_adapter(VLLM_LORA_INT_ID)
    if model is not None:
        manager.add_adapter(model)
        manager.activate_adapter(VLLM_LORA_INT_ID)
