"""vLLM-Omni's worker of a language model on a CPU."""

import inspect
from typing import Any

import torch
from typing_extensions import override
from vllm_omni.worker.gpu_ar_model_runner import GPUARModelRunner
from vllm_omni.worker.gpu_ar_worker import GPUARWorker

from verl_omni.platforms.cpu.torch_worker import TorchKernelModelRunner, TorchWorker


class ModelRunner(TorchKernelModelRunner):
    """Runner that vLLM-Omni's calls last: it gets the arguments that the other one adds."""

    @override
    def _model_forward(self, *args: Any, **kwargs: Any) -> Any:
        """Drop arguments that vLLM-Omni's runner passes for its own models and that models of vLLM do not accept."""
        known = inspect.signature(self.model.forward).parameters
        if not any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in known.values()):
            kwargs = {name: value for name, value in kwargs.items() if name in known}
        return super()._model_forward(*args, **kwargs)


class CpuLanguageModelRunner(GPUARModelRunner, ModelRunner):
    """vLLM-Omni's runner of language models on a CPU. The order of the bases puts the CPU runner below it.

    During a chunked prefill, the token sampled after each chunk but the last is discarded. Upstream then rewinds the
    request's generator by an offset, which CPU generators do not support: here the generator's state is restored.
    """

    @override
    def _sample(self, logits: Any, spec_decode_metadata: Any) -> Any:
        before = {index: generator.get_state() for index, generator in self._discarded().items()}
        sampled = super()._sample(logits, spec_decode_metadata)
        for index, state in before.items():
            self.input_batch.generators[index].set_state(state)
        return sampled

    @override
    def _bookkeeping_sync(self, *args: Any, **kwargs: Any) -> Any:
        hidden = self._discarded()
        for index in hidden:
            del self.input_batch.generators[index]
        try:
            return super()._bookkeeping_sync(*args, **kwargs)
        finally:
            self.input_batch.generators.update(hidden)

    def _discarded(self) -> dict[int, torch.Generator]:
        """Generators, by row of the batch, of requests whose sampled token is discarded."""
        unfinished = self.discard_request_mask.np
        return {index: generator for index, generator in self.input_batch.generators.items() if unfinished[index]}


class CpuLanguageModelWorker(TorchWorker, GPUARWorker):
    """vLLM-Omni's worker on a CPU."""

    model_runner_cls = CpuLanguageModelRunner
