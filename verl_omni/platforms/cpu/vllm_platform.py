"""vLLM's view of a host CPU. Imported while `import vllm` runs: nothing of vllm_omni may be imported here."""

from __future__ import annotations

from typing import Any

from typing_extensions import override
from vllm.platforms.cpu import CpuPlatform
from vllm.platforms.interface import PlatformEnum


class HostCpuPlatform(CpuPlatform):
    """The CPU platform, declared out of tree.

    With `PlatformEnum.CPU`, vLLM repacks each linear layer's weight for oneDNN and drops the original
    (vllm/model_executor/layers/linear.py, `process_weights_after_loading`), after which no weight update
    in place is possible.
    """

    _enum = PlatformEnum.OOT
    simple_compile_backend = "eager"  # else the first log-probabilities of tokens wait for a compiler

    @classmethod
    @override
    def import_kernels(cls) -> None:
        """The CUDA build of vLLM, which serves both kinds of machine, carries no CPU kernels."""

    @classmethod
    @override
    def get_attn_backend_cls(
        cls, selected_backend: Any, attn_selector_config: Any, num_heads: int | None = None
    ) -> str:
        """Attention of language models. Raises NotImplementedError where the model's is latent (MLA) or sparse."""
        if attn_selector_config.use_mla or attn_selector_config.use_sparse:
            raise NotImplementedError("attention on a host is neither latent (MLA) nor sparse")
        return "verl_omni.platforms.cpu.attention.TorchAttentionBackend"

    @classmethod
    @override
    def check_and_update_config(cls, vllm_config: Any) -> None:
        """Compile nothing, and keep the executor; upstream wants a process of its own, for OpenMP."""
        from vllm.config import CompilationMode

        executor = vllm_config.parallel_config.distributed_executor_backend
        super().check_and_update_config(vllm_config)
        vllm_config.parallel_config.distributed_executor_backend = executor
        vllm_config.compilation_config.mode = CompilationMode.NONE
