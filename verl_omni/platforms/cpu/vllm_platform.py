"""vLLM's view of a host CPU. Imported while `import vllm` runs: nothing of vllm_omni may be imported here."""

from __future__ import annotations

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

    @classmethod
    @override
    def import_kernels(cls) -> None:
        """The CUDA build of vLLM, which serves both kinds of machine, carries no CPU kernels."""
