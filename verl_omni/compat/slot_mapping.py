"""Patch: vLLM computes the cache slots of tokens on a CPU without CPU kernels.

Fault: on a CPU, vLLM replaces its Triton kernels by C++ functions of its CPU build
(vllm/v1/worker/cpu_model_runner.py, `_postprocess_triton`). Its CUDA build, which this project also uses on CPUs, has
none of them. Language models need this one kernel.
Remove when: `cpu_triton_utils.compute_slot_mapping_kernel` works in the CUDA build.
"""

from collections.abc import Callable
from typing import Any

from verl_omni.compat.versions import require

TESTED = frozenset({"0.30.0"})


class _Kernel:
    """Supports the call syntax of Triton's kernels: `kernel[grid](…)`."""

    def __init__(self, function: Callable[..., None]) -> None:
        self.func = function  # vLLM reads the names of its parameters

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return self.func


def apply(function: Callable[..., None]) -> None:
    """Let vLLM compute slots by `function`, which has the arguments of its Triton kernel. Safe to repeat."""
    require("vllm", TESTED, "slot_mapping")
    from vllm.v1.worker import block_table

    block_table._COMPUTE_SLOT_MAPPING_KERNEL.kernel = _Kernel(function)
