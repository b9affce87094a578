"""The engine's worker on a host CPU."""

from __future__ import annotations

from typing_extensions import override
from vllm_omni.diffusion.worker.diffusion_worker import DiffusionWorker


class HostDiffusionWorker(DiffusionWorker):
    """Sleep and wake succeed and free nothing: upstream's need vLLM's CUDA memory pool."""

    @override
    def sleep(self, level: int = 1) -> int:
        """Bytes freed: none."""
        return 0

    @override
    def wake_up(self, tags: list[str] | None = None) -> bool:
        return True
