"""`vLLMOmniColocateWorkerExtension`: weight updates in an engine's worker, of a diffusion or a language model."""

from __future__ import annotations

import multiprocessing
from collections.abc import Collection
from typing import Any

import torch
from typing_extensions import override
from verl.workers.rollout.vllm_rollout.utils import set_death_signal
from vllm_omni.diffusion.distributed.autoencoders.distributed_vae_executor import DistributedVaeMixin
from vllm_omni.diffusion.worker.diffusion_worker import CustomPipelineWorkerExtension

from verl_omni.utils.registry import load
from verl_omni.utils.vllm_omni import VLLMOmniHijack
from verl_omni.weight_sync.errors import PartialWeights, WeightSyncError, error_text
from verl_omni.weight_sync.full_weights import FullUpdate
from verl_omni.weight_sync.transfer import UPDATE_DEADLINE_SECONDS
from verl_omni.workers.rollout.vllm_rollout.engine_worker.lora_binding import check_every_adapter, swap_adapter
from verl_omni.workers.rollout.vllm_rollout.engine_worker.weight_receiver import WeightReceiver

# By its name: only a worker of a language model imports it.
LANGUAGE_MODEL = "verl_omni.workers.rollout.vllm_rollout.language_model.token_worker_extension"
# Methods of vLLM-Omni's worker that compute with the weights.
COMPUTING = ("execute_model", "execute_model_batch", "execute_stepwise")


class vLLMOmniColocateWorkerExtension(WeightReceiver, CustomPipelineWorkerExtension):  # type: ignore[misc]
    """Mixed into the engine's worker. All methods run in the worker's only thread, between requests.

    It overrides no worker method, which vLLM would refuse, so it also works with vLLM's workers. A program that
    gives it to vLLM as `worker_extension_cls` updates weights while no request is in flight, and then clears the cache
    of prefixes; its requests name the adapter with `VLLM_LORA_NAME`, `VLLM_LORA_INT_ID` and `VLLM_LORA_PATH`.
    """

    od_config: Any  # set by the engine's worker

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
        deadline: float = UPDATE_DEADLINE_SECONDS,
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
        return self._receive_update(config, zmq_update_id, deadline, global_steps, stage_adapter)

    @override
    def note_weights_version(self, global_steps: int | None) -> None:
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

    @override
    def _swap_adapter(self, tensors: dict[str, torch.Tensor], config: dict[str, Any]) -> int:
        self._check_no_running_requests()  # also at the update's second call
        if not self._has_pipeline():
            bound: int = load(f"{LANGUAGE_MODEL}:swap_worker_adapter")(self, tensors, config)
            return bound
        return swap_adapter(self, tensors, config, base_synced=self._base_synced)

    @override
    def _receive_full(self, handle: str, deadline: float) -> dict[str, Any]:
        if not self._has_pipeline():
            reply: dict[str, Any] = load(f"{LANGUAGE_MODEL}:receive_full")(self, handle, deadline)
            return reply
        update = FullUpdate(self.model_runner.pipeline)
        try:
            sent, counts = self._receive_buckets(update.load, handle, deadline)
            written = update.finish()
        except BaseException as error:
            if update.started:
                self._refuse_to_compute(error_text(error))
            raise
        for name in COMPUTING:
            self.__dict__.pop(name, None)
        self._base_synced = True
        casts = dict(update.casts)
        return {"tensors": len(sent), **counts, "lora": False, "bound": written, "casts": casts}

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
