"""vLLM's CPU platform. Imported during `import vllm`, so this module must not import vllm_omni."""

from typing import Any

from typing_extensions import override
from vllm.platforms.cpu import CpuPlatform
from vllm.platforms.interface import PlatformEnum


class OutOfTreeCpuPlatform(CpuPlatform):
    """The CPU platform, declared out of tree.

    With `PlatformEnum.CPU`, vLLM repacks each linear layer's weight for oneDNN and drops the original
    (vllm/model_executor/layers/linear.py, `process_weights_after_loading`), which makes weight updates in place
    impossible.
    """

    _enum = PlatformEnum.OOT
    simple_compile_backend = "eager"  # otherwise the first log-probabilities wait for a compiler

    @classmethod
    @override
    def import_kernels(cls) -> None:
        """Do nothing: vLLM's CUDA build, which this project also uses on CPUs, has no CPU kernels."""

    @classmethod
    @override
    def get_attn_backend_cls(
        cls, selected_backend: Any, attn_selector_config: Any, num_heads: int | None = None
    ) -> str:
        """Attention of language models. Raises NotImplementedError for latent (MLA) and sparse attention."""
        if attn_selector_config.use_mla or attn_selector_config.use_sparse:
            raise NotImplementedError(
                "unsupported attention: on a CPU, latent (MLA) and sparse attention are not implemented"
            )
        return "verl_omni.platforms.cpu.attention_backend.TorchAttentionBackend"

    @classmethod
    @override
    def check_and_update_config(cls, vllm_config: Any) -> None:
        """Disable compilation and keep the executor, which upstream would replace by one with a worker process."""
        from vllm.config import CompilationMode

        if vllm_config.model_config is not None and not vllm_config.model_config.architectures:
            return  # configuration of a part of a model, made from the model's, which this method has seen
        executor = vllm_config.parallel_config.distributed_executor_backend
        if vllm_config.parallel_config.worker_cls == "auto":
            vllm_config.parallel_config.worker_cls = "verl_omni.platforms.cpu.torch_worker.TorchWorker"
        super().check_and_update_config(vllm_config)
        vllm_config.parallel_config.distributed_executor_backend = executor
        vllm_config.compilation_config.mode = CompilationMode.NONE
