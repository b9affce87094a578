"""`vLLMOmniColocateWorkerExtension`: the engine worker's end of a weight update."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from verl.workers.rollout.vllm_rollout.utils import set_death_signal
from vllm_omni.diffusion.worker.diffusion_worker import CustomPipelineWorkerExtension

from verl_omni.utils.vllm_omni import OmniTensorLoRARequest, VLLMOmniHijack
from verl_omni.weight_sync import names, transfer
from verl_omni.weight_sync.errors import BindingIncomplete, IncompleteUpdate, WeightSyncError
from verl_omni.weight_sync.staging import Staging, check_finite, check_names

VLLM_LORA_NAME, VLLM_LORA_INT_ID, VLLM_LORA_PATH = "123", 123, "simon_lora_path"
DEADLINE_SECONDS = 120.0


class vLLMOmniColocateWorkerExtension(CustomPipelineWorkerExtension):  # type: ignore[misc]
    """Mixed into the engine's worker. Everything here runs in the worker's one thread, between requests."""

    _pending_peft_config: dict[str, Any] | None = None

    def __new__(cls, **kwargs: Any) -> vLLMOmniColocateWorkerExtension:
        if kwargs.get("die_with_parent", _runs_in_own_process()):
            set_death_signal()
        VLLMOmniHijack.hijack()
        return super().__new__(cls)

    def set_pending_lora_peft_config(self, peft_config: dict[str, Any]) -> None:
        """Keep a config for the next update, for senders that cannot pass it along."""
        self._pending_peft_config = peft_config

    def update_weights_from_ipc(
        self,
        peft_config: dict[str, Any] | None = None,
        base_sync_done: bool = False,
        use_shm: bool = False,
        zmq_update_id: str | None = None,
        deadline: float = DEADLINE_SECONDS,
    ) -> dict[str, Any]:
        """Take an adapter (with `peft_config` and `base_sync_done`) or full weights from the trainer.

        Returns:
            `tensors` (number), `lora` (bool), `bound` (modules that the adapter was attached to).

        Raises:
            WeightSyncError: it did not take effect. An adapter is swapped whole, so the old one goes on
                serving; full weights are written bucket by bucket, so the worker must not serve afterwards.
            RuntimeError: the worker has no device or no pipeline yet.
        """
        if self.device is None or self.model_runner.pipeline is None:
            raise RuntimeError("weights arrived before the worker had a model")
        config, self._pending_peft_config = peft_config or self._pending_peft_config, None
        handle = names.make_update_zmq_handle(self._get_zmq_handle(), zmq_update_id)
        if config and base_sync_done:
            return self._take_adapter(handle, config, deadline)
        return self._take_full(handle, deadline)

    def _take_adapter(self, handle: str, config: dict[str, Any], deadline: float) -> dict[str, Any]:
        staging = Staging()
        sent = transfer.receive(staging.add, handle=handle, device=self.device, deadline=deadline)
        check_names(sent, staging.tensors)
        bound = swap_adapter(self, staging.tensors, config)
        return {"tensors": len(sent), "lora": True, "bound": bound}

    def _take_full(self, handle: str, deadline: float) -> dict[str, Any]:
        pipeline = self.model_runner.pipeline
        loaded: set[str] = set()

        def load(bucket: transfer.Bucket) -> None:
            for name, tensor in bucket:
                check_finite(name, tensor)
            # Consumed before the bucket is confirmed: load_weights copies into the parameters.
            loaded.update(pipeline.load_weights(iter(bucket)))

        sent = transfer.receive(load, handle=handle, device=self.device, deadline=deadline)
        wanted = {f"transformer.{name}" for name, _ in pipeline.transformer.named_parameters()}
        if missing := sorted(wanted - loaded):
            raise IncompleteUpdate(f"full weights left out {len(missing)} parameters: {', '.join(missing[:5])}")
        return {"tensors": len(sent), "lora": False, "bound": len(loaded)}

    def _get_zmq_handle(self) -> str:
        job, replica = os.environ.get("VERL_RAY_JOB_ID", "0"), os.environ.get("VERL_REPLICA_RANK", "0")
        return f"ipc:///tmp/rl-colocate-zmq-{job}-replica-{replica}-rank-{self.local_rank}.sock"


def swap_adapter(worker: Any, tensors: dict[str, torch.Tensor], peft_config: dict[str, Any]) -> int:
    """Replace the policy's adapter, attach it at once, and check that every tensor found its layer.

    vLLM-Omni 0.28 accepts in silence an adapter that attaches nowhere, and attaches at the first request.

    Returns:
        How many modules it was attached to.

    Raises:
        BindingIncomplete: some module of the adapter is not one of the engine's; the old adapter is back.
        WeightSyncError: the engine refused it; the old adapter is back.
    """
    manager = worker.lora_manager
    if manager is None:
        raise WeightSyncError("the engine was started without LoRA: model.lora_rank must be positive")
    modules = names.adapter_modules(tensors)
    request = OmniTensorLoRARequest(
        lora_name=VLLM_LORA_NAME, lora_int_id=VLLM_LORA_INT_ID, lora_path=VLLM_LORA_PATH,
        peft_config=peft_config, lora_tensors=tensors,
    )  # fmt: skip
    previous = manager._registered_adapters.get(VLLM_LORA_INT_ID)
    bound: set[str] = set()

    def attached(*, lora_model: Any, bound_lora_names: frozenset[str]) -> None:
        if loose := sorted(set(lora_model.loras) - bound_lora_names):
            raise BindingIncomplete(
                f"{len(loose)} of {len(lora_model.loras)} LoRA modules are not in the engine's model: {loose[:5]}"
            )
        bound.update(bound_lora_names)

    try:
        with _binding_checked_by(attached, manager.pipeline):
            manager.remove_adapter(VLLM_LORA_INT_ID)
            if not worker.add_lora(request):
                raise WeightSyncError("the engine did not take the adapter")
            check_shapes(manager, tensors, modules)
            manager.set_active_adapter(request)
        if len(bound) != len(modules):
            raise BindingIncomplete(f"{len(modules)} LoRA modules were sent, {len(bound)} are attached")
    except Exception as error:
        _put_back(manager, previous, request)
        if isinstance(error, WeightSyncError):
            raise
        raise WeightSyncError(f"the engine refused the adapter: {error}") from error
    return len(bound)


def check_shapes(manager: Any, tensors: dict[str, torch.Tensor], modules: set[str]) -> None:
    """Compare each pair with its layer: vLLM copies a smaller one into a corner of the buffer without a word.

    Layers that are split over several devices are left to the engine, which splits the tensors itself.

    Raises:
        IncompleteUpdate: the shapes are not those of the layer.
    """
    for module in sorted(modules):
        layer, part = _layer_of(manager, module)
        if layer is None or getattr(layer, "tp_size", 1) > 1:
            continue
        found = (tensors[f"{module}.lora_A.weight"].shape[-1], tensors[f"{module}.lora_B.weight"].shape[0])
        wanted = (layer.lora_a_stacked[part].shape[-1], layer.lora_b_stacked[part].shape[-2])
        if found != wanted:
            raise IncompleteUpdate(f"{module}: LoRA for {found[0]} -> {found[1]} features, the layer has {wanted}")


def _layer_of(manager: Any, module: str) -> tuple[Any, int]:
    """The engine's layer for a module, and which part of it where several are packed into one."""
    if module in manager._lora_modules:
        return manager._lora_modules[module], 0
    parent, _, leaf = module.rpartition(".")
    for packed, leaves in manager._packed_modules_mapping.items():
        if leaf in leaves and f"{parent}.{packed}" in manager._lora_modules:
            return manager._lora_modules[f"{parent}.{packed}"], leaves.index(leaf)
    return None, 0


@contextmanager
def _binding_checked_by(check: Callable[..., None], pipeline: Any) -> Iterator[None]:
    """vLLM-Omni asks the pipeline whether an adapter is attached well enough; answer in its place."""
    pipeline._validate_diffusion_lora_binding = check
    try:
        yield
    finally:
        del pipeline._validate_diffusion_lora_binding


def _put_back(manager: Any, previous: Any, request: OmniTensorLoRARequest) -> None:
    """Serve the adapter that served before, or none if there was none."""
    manager.remove_adapter(VLLM_LORA_INT_ID)
    manager._reset_lora_layers()
    manager._active_adapter_id = None
    if previous is not None:
        manager._registered_adapters[VLLM_LORA_INT_ID] = previous
        manager.set_active_adapter(request)


def _runs_in_own_process() -> bool:
    """Whether the worker is a child of the server; in the server's own process a death signal is Ray's business."""
    import multiprocessing

    return multiprocessing.parent_process() is not None
