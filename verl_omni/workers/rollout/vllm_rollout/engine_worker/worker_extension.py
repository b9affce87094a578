"""`vLLMOmniColocateWorkerExtension`: weight updates in an engine's worker, of a diffusion or a language model."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from typing_extensions import override
from verl.workers.rollout.vllm_rollout.utils import set_death_signal
from vllm_omni.diffusion.distributed.autoencoders.distributed_vae_executor import DistributedVaeMixin
from vllm_omni.diffusion.worker.diffusion_worker import CustomPipelineWorkerExtension

from verl_omni.utils.vllm_omni import VLLMOmniHijack
from verl_omni.weight_sync import ipc
from verl_omni.weight_sync.buckets import Bucket
from verl_omni.weight_sync.checks import StagedTensors, check_names
from verl_omni.weight_sync.errors import PartialWeights, WeightSyncError, error_text
from verl_omni.weight_sync.full_weights import FullUpdate, LanguageModelUpdate
from verl_omni.weight_sync.names import make_update_zmq_handle
from verl_omni.workers.rollout.vllm_rollout.engine_worker.lora_binding import check_every_adapter, swap_adapter

# Methods of vLLM-Omni's worker that compute with the weights.
COMPUTING = ("execute_model", "execute_model_batch", "execute_stepwise")


class vLLMOmniColocateWorkerExtension(CustomPipelineWorkerExtension):  # type: ignore[misc]
    """Mixed into the engine's worker. All methods run in the worker's only thread, between requests.

    It overrides no worker method, which vLLM would refuse, so it also works with vLLM's workers. A program that
    gives it to vLLM as `worker_extension_cls` updates weights while no request is in flight, and then clears the cache
    of prefixes; its requests name the adapter with `VLLM_LORA_NAME`, `VLLM_LORA_INT_ID` and `VLLM_LORA_PATH`.
    """

    # Attributes of the engine's worker; without values, because vLLM refuses an extension that redefines any.
    device: torch.device
    local_rank: int
    model_runner: Any
    model_config: Any  # of vLLM's workers
    od_config: Any  # of vLLM-Omni's diffusion workers

    _pending_peft_config: dict[str, Any] | None = None
    _base_synced = False
    _staged_adapter: tuple[dict[str, torch.Tensor], dict[str, Any]] | None = None  # tensors and config

    def __new__(cls, **kwargs: Any) -> vLLMOmniColocateWorkerExtension:
        # A worker in the server's process ends with that process, which Ray stops.
        if multiprocessing.parent_process() is not None:
            set_death_signal()
        VLLMOmniHijack.hijack()
        check_every_adapter()
        return super().__new__(cls)

    @override
    def re_init_pipeline(self, custom_pipeline_args: dict[str, Any]) -> None:
        super().re_init_pipeline(custom_pipeline_args)
        apply_vae_settings(getattr(self.model_runner.pipeline, "vae", None), self.od_config)

    def update_weights_from_ipc(
        self,
        peft_config: dict[str, Any] | None = None,
        base_sync_done: bool = False,
        use_shm: bool = False,
        zmq_update_id: str | None = None,
        deadline: float = ipc.UPDATE_DEADLINE_SECONDS,
        global_steps: int | None = None,
        stage_adapter: bool = False,
    ) -> dict[str, Any]:
        """Receive an adapter or full weights from the trainer.

        It is an adapter with `peft_config` and `base_sync_done`, or after `set_pending_lora_peft_config`.

        Args:
            use_shm: verl's flag; ignored, because the sender's first message says where the buffer is.
            global_steps: version of the weights, for later samples; None if only the server tracks it.
            stage_adapter: only receive an adapter; `commit_adapter` serves it. With tensor parallelism, call that when
                all workers have replied, as `EngineControlServer` does.

        Returns:
            `tensors` (number sent), `buckets`, `bytes`, `lora` (bool), `bound` (number of modules that the adapter was
            bound to, or of parameters that were written; not of a staged adapter), and for full weights `casts` (see
            `FullUpdate`).

        Raises:
            WeightSyncError: the update did not take effect. An adapter is swapped as a whole, so the old one keeps
                serving in this worker. Full weights are written bucket by bucket, so after a failure the worker refuses
                to serve until a full update succeeds.
            PartialWeights: full weights of a language model arrived in part; old and new ones are mixed until a full
                update succeeds, and the program must send no request before.
            RuntimeError: the worker has no device or no model.
        """
        if self.device is None or not (self._has_pipeline() or hasattr(self.model_runner, "get_model")):
            raise RuntimeError("weight update for a worker without a pipeline or a language model: no model is loaded")
        config = self._adapter_config(peft_config, base_sync_done)
        self._check_no_running_requests()
        handle = make_update_zmq_handle(self._get_zmq_handle(), zmq_update_id)
        self._staged_adapter = None
        with _release_frames():
            if not config:
                reply = self._receive_full(handle, deadline)
                self.note_weights_version(global_steps)
                return reply
            reply = self._receive_adapter(handle, config, deadline)
        return reply if stage_adapter else reply | self.commit_adapter(global_steps)

    def set_pending_lora_peft_config(self, peft_config: dict[str, Any]) -> None:
        """Treat the next update as an adapter's, for senders that pass no config with an update."""
        self._pending_peft_config = peft_config

    def _adapter_config(self, given: dict[str, Any] | None, base_sync_done: bool) -> dict[str, Any] | None:
        """The adapter's config if the update is one of an adapter, otherwise None. A pending config is used once."""
        pending = self._pending_peft_config
        self._pending_peft_config = None
        if given:
            return given if base_sync_done else None
        return pending

    def commit_adapter(self, global_steps: int | None = None) -> dict[str, Any]:
        """Serve the adapter that the last update has staged (`stage_adapter`).

        Args:
            global_steps: version of the weights, for later samples.

        Returns:
            `bound`: number of modules that the adapter was bound to.

        Raises:
            WeightSyncError: no adapter is staged, or it does not match the engine's model; the old one keeps serving.
        """
        staged = self._staged_adapter
        self._staged_adapter = None
        if staged is None:
            raise WeightSyncError("no adapter is staged: the last weight update failed, or was one of full weights")
        with _release_frames():
            bound = self._swap_adapter(*staged)
        self.note_weights_version(global_steps)
        return {"bound": bound}

    def note_weights_version(self, global_steps: int | None) -> None:
        """Set the version of later samples. The server attaches it to outputs of a language model."""
        if (pipeline := getattr(self.model_runner, "pipeline", None)) is not None:
            pipeline.weights_version = global_steps

    def forget_finished_requests(self, unfinished: Collection[str]) -> None:
        """Forget every request that is between two steps but not in `unfinished`, such as an aborted one.

        vLLM-Omni forgets an aborted request in the next step of another one (`DiffusionModelRunner._update_states`),
        and while requests are held for an update there is none.
        """
        cached = getattr(self.model_runner, "state_cache", {})
        for request_id in cached.keys() - set(unfinished):
            del cached[request_id]

    def _check_no_running_requests(self) -> None:
        """Weights must not change between two steps of a request (`step_execution`)."""
        if running := len(getattr(self.model_runner, "state_cache", ())):
            raise WeightSyncError(
                f"{running} requests are between two denoising steps: abort them or wait for them before the update"
            )

    def _has_pipeline(self) -> bool:
        return getattr(self.model_runner, "pipeline", None) is not None

    def _swap_adapter(self, tensors: dict[str, torch.Tensor], config: dict[str, Any]) -> int:
        self._check_no_running_requests()  # also at the update's second call
        return swap_adapter(self, tensors, config, base_synced=self._base_synced)

    def _receive_adapter(self, handle: str, config: dict[str, Any], deadline: float) -> dict[str, Any]:
        staged = StagedTensors()
        sent, counts = self._receive_buckets(staged.add, handle, deadline)
        check_names(sent, staged.tensors)
        self._staged_adapter = staged.tensors, config
        return {"tensors": len(sent), **counts, "lora": True}

    def _receive_full(self, handle: str, deadline: float) -> dict[str, Any]:
        is_diffusion = self._has_pipeline()
        if is_diffusion:
            update = FullUpdate(self.model_runner.pipeline)
        else:
            update = LanguageModelUpdate(self.model_runner.get_model())
        try:
            sent, counts = self._receive_buckets(update.load, handle, deadline)
            written = update.finish()
            if not is_diffusion:
                self._process_loaded_weights()
        except BaseException as error:
            if not update.started:
                raise
            if is_diffusion:
                self._refuse_to_compute(error_text(error))
                raise
            # The server refuses requests (`check_weights`).
            raise PartialWeights(
                f"a full weight update failed part-way, so old and new weights are mixed: {error_text(error)}"
            ) from error
        for name in COMPUTING:
            self.__dict__.pop(name, None)
        self._base_synced = True
        return {"tensors": len(sent), **counts, "lora": False, "bound": written, "casts": dict(update.casts)}

    def _process_loaded_weights(self) -> None:
        from vllm.model_executor.model_loader.utils import process_weights_after_loading

        process_weights_after_loading(self.model_runner.get_model(), self.model_config, self.device)

    def _receive_buckets(
        self, consume: Callable[[Bucket], None], handle: str, deadline: float
    ) -> tuple[list[str], dict[str, int]]:
        """Returns the names that were sent, and the numbers of `buckets` and of `bytes` of the tensors."""
        counts = {"buckets": 0, "bytes": 0}

        def consume_and_count(bucket: Bucket) -> None:
            size = sum(tensor.nbytes for _, tensor in bucket)
            consume(bucket)
            counts["buckets"] += 1
            counts["bytes"] += size

        sent = ipc.receive(consume_and_count, handle=handle, device=self.device, deadline=deadline)
        return sent, counts

    def _get_zmq_handle(self) -> str:
        job = os.environ.get("VERL_RAY_JOB_ID", "0")
        replica = os.environ.get("VERL_REPLICA_RANK", "0")
        return f"ipc:///tmp/rl-colocate-zmq-{job}-replica-{replica}-rank-{self.local_rank}.sock"

    def _refuse_to_compute(self, cause: str) -> None:
        """Let requests fail while the weights are partly written."""

        def refuse(*args: Any, **kwargs: Any) -> Any:
            raise PartialWeights(f"a full weight update failed part-way, so old and new weights are mixed: {cause}")

        for name in COMPUTING:
            setattr(self, name, refuse)


def apply_vae_settings(vae: Any, od_config: Any) -> None:
    """Let a pipeline's VAE decode as the engine's settings say.

    vLLM-Omni does this only for its built-in pipelines (vllm_omni/diffusion/registry.py, `initialize_model`).

    Raises:
        ValueError: the VAE does not have what a setting asks for.
    """
    ranks = od_config.parallel_config.vae_patch_parallel_size
    if ranks > 1:
        if not isinstance(vae, DistributedVaeMixin):
            raise ValueError(f"vae_patch_parallel_size: {type(vae).__name__} decodes on one accelerator; write 1")
        od_config.vae_use_tiling = True  # the tiles are what is divided
        vae.set_parallel_size(ranks, mode=od_config.parallel_config.vae_parallel_mode)
    for switch in ("use_slicing", "use_tiling"):
        if getattr(od_config, f"vae_{switch}"):
            if not hasattr(vae, switch):
                raise ValueError(f"vae_{switch}: {type(vae).__name__} does not have it; write false")
            setattr(vae, switch, True)


@contextmanager
def _release_frames() -> Iterator[None]:
    """The frames of an error refer to the sender's buffer and to tensors, which a stored error would keep alive."""
    try:
        yield
    except BaseException as error:
        traceback.clear_frames(error.__traceback__)
        raise
