"""Patch: vLLM finds tokens' slots in the key-value cache on a host without kernels of its own.

Fault: on a host, vLLM puts C++ functions of its CPU build in the place of its Triton kernels
(vllm/v1/worker/cpu_model_runner.py, `_postprocess_triton`). Its CUDA build, which serves both kinds of machine, has
none of them; of the kernels, a language model needs this one.
Remove when: `cpu_triton_utils.compute_slot_mapping_kernel` works in the CUDA build.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from verl_omni.compat.versions import require

TESTED = frozenset({"0.28.0"})


class _Kernel:
    """Is called as Triton's kernels are: `kernel[grid](…)`."""

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return self._function


def apply(function: Callable[..., None]) -> None:
    """Let `function`, with the arguments of vLLM's `_compute_slot_mapping_kernel`, do its work. Safe to repeat."""
    require("vllm", TESTED, "slot_mapping")
    from vllm.v1.worker import block_table

    block_table._compute_slot_mapping_kernel = _Kernel(function)
