"""The engine's worker of a diffusion model on a CPU."""

from __future__ import annotations

from typing_extensions import override
from vllm_omni.diffusion.worker.diffusion_worker import DiffusionWorker


class CpuDiffusionWorker(DiffusionWorker):
    """vLLM-Omni's worker, whose sleep and wake do nothing: upstream's need vLLM's CUDA memory pool."""

    @override
    def sleep(self, level: int = 1) -> int:
        """Number of freed bytes: 0."""
        return 0

    @override
    def wake_up(self, tags: list[str] | None = None) -> bool:
        return True
