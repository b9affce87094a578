"""`vLLMOmniColocateWorkerExtension`: the engine worker's end of a weight update."""

from __future__ import annotations

import multiprocessing
from typing import Any

import torch
from typing_extensions import override
from verl.workers.rollout.vllm_rollout.utils import set_death_signal
from vllm_omni.diffusion.worker.diffusion_worker import CustomPipelineWorkerExtension

from verl_omni.utils.vllm_omni import VLLMOmniHijack
from verl_omni.weight_sync.errors import PartialWeights, WeightSyncError, error_text
from verl_omni.weight_sync.full_weights import FullUpdate
from verl_omni.weight_sync.transfer import UPDATE_DEADLINE_SECONDS
from verl_omni.workers.rollout.vllm_rollout.engine_worker.lora_binding import swap_adapter
from verl_omni.workers.rollout.vllm_rollout.engine_worker.weight_receiver import WeightReceiver


class vLLMOmniColocateWorkerExtension(WeightReceiver, CustomPipelineWorkerExtension):  # type: ignore[misc]
    """Mixed into the engine's worker. Everything here runs in the worker's one thread, between requests."""

    _torn: str | None = None

    def __new__(cls, **kwargs: Any) -> vLLMOmniColocateWorkerExtension:
        # An inline worker lives in the server's process, whose end is Ray's business.
        if multiprocessing.parent_process() is not None:
            set_death_signal()
        VLLMOmniHijack.hijack()
        return super().__new__(cls)

    def update_weights_from_ipc(
        self,
        peft_config: dict[str, Any] | None = None,
        base_sync_done: bool = False,
        use_shm: bool = False,
        zmq_update_id: str | None = None,
        deadline: float = UPDATE_DEADLINE_SECONDS,
        global_steps: int | None = None,
    ) -> dict[str, Any]:
        """Take an adapter (with `peft_config` and `base_sync_done`) or full weights from the trainer.

        Args:
            use_shm: verl's flag; the sender's first message says the same, and is believed.
            global_steps: version of the weights, for the samples that they will draw; None leaves that to the server.

        Returns:
            `tensors` (number sent), `buckets`, `lora` (bool), `bound`: modules that the adapter was attached to,
            or parameters that were written.

        Raises:
            WeightSyncError: it did not take effect. An adapter is swapped whole, so the old one goes on serving;
                full weights are written bucket by bucket, so after a failure the worker refuses to serve until a
                full update succeeds.
            RuntimeError: the worker has no device or no pipeline yet, or a model that makes tokens.
        """
        if self.device is None or getattr(self.model_runner, "pipeline", None) is None:
            raise RuntimeError(
                "weights arrived at a worker without a pipeline: none is loaded, or its model makes tokens"
            )
        config = self._config_of_update(peft_config)
        self._refuse_half_drawn()
        answer = self._take(config, base_sync_done, zmq_update_id, deadline)
        self.note_weights_version(global_steps)
        return answer

    def note_weights_version(self, global_steps: int | None) -> None:
        """Samples that are drawn from now on are of this version."""
        if (pipeline := getattr(self.model_runner, "pipeline", None)) is not None:
            pipeline.weights_version = global_steps

    def _refuse_half_drawn(self) -> None:
        """Between the steps of a request (`step_execution`) its weights must stay what they were."""
        if half_drawn := len(getattr(self.model_runner, "state_cache", ())):
            raise WeightSyncError(f"{half_drawn} requests are half drawn: abort them, or let them end, first")

    @override
    def _swap(self, tensors: dict[str, torch.Tensor], config: dict[str, Any]) -> int:
        return swap_adapter(self, tensors, config, base_synced=self._base_synced)

    @override
    def _take_full(self, handle: str, deadline: float) -> dict[str, Any]:
        update = FullUpdate(self.model_runner.pipeline)
        try:
            sent, buckets = self._receive(update.load, handle, deadline)
            written = update.finish()
        except BaseException as error:
            if update.started:
                self._torn = error_text(error)
            raise
        self._base_synced, self._torn = True, None
        return {"tensors": len(sent), "buckets": buckets, "lora": False, "bound": written}

    def execute_model(self, *args: Any, **kwargs: Any) -> Any:
        """vLLM-Omni's, unless the weights are torn."""
        self._refuse_torn_weights()
        return super().execute_model(*args, **kwargs)

    def execute_model_batch(self, *args: Any, **kwargs: Any) -> Any:
        """vLLM-Omni's, unless the weights are torn."""
        self._refuse_torn_weights()
        return super().execute_model_batch(*args, **kwargs)

    def execute_stepwise(self, *args: Any, **kwargs: Any) -> Any:
        """vLLM-Omni's, unless the weights are torn."""
        self._refuse_torn_weights()
        return super().execute_stepwise(*args, **kwargs)

    def _refuse_torn_weights(self) -> None:
        if self._torn is not None:
            raise PartialWeights(f"a full weight update broke off, and some weights are new, some old: {self._torn}")
