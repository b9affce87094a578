"""`vLLMOmniNPUColocateWorkerExtension`: sleep and wake of the engine's worker on an Ascend NPU.

vLLM-Omni's worker uses vLLM's memory pool, which supports CUDA only. vllm-ascend has a pool with the same methods. This
module has not been run on an NPU; the tests check how it calls the pool.
"""

import gc
import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from vllm_omni.platforms import current_omni_platform

from verl_omni.compat import npu_empty_cache
from verl_omni.workers.rollout.vllm_rollout.engine_worker.worker_extension import vLLMOmniColocateWorkerExtension

logger = logging.getLogger(__name__)
GIB = 1 << 30


class vLLMOmniNPUColocateWorkerExtension(vLLMOmniColocateWorkerExtension):
    """Mixed in before the engine's worker, so `super()` is that worker; on other devices every call goes there."""

    def _maybe_get_memory_pool_context(self, tag: str) -> AbstractContextManager[Any]:
        """Context in which loaded memory belongs to the pool under `tag`: `weights` or `kv_cache`.

        Raises:
            AssertionError: the pool of this process holds the weights of another engine.
        """
        if not current_omni_platform.is_npu():
            return super()._maybe_get_memory_pool_context(tag)  # type: ignore[no-any-return,misc]
        if not self.od_config.enable_sleep_mode:
            return nullcontext()
        current_omni_platform.synchronize()
        gc.collect()
        allocator = _allocator()
        if tag == "weights":
            assert allocator.get_current_usage() == 0, "Sleep mode can only be used for one instance per process."
        return _pool(allocator, tag)

    def sleep(self, level: int = 1) -> bool:
        """Free the device's memory. Level 1 offloads weights to CPU memory; level 2 drops them and keeps buffers.

        Returns:
            True. The engine itself adds the number of freed bytes to its acknowledgement.
        """
        if not current_omni_platform.is_npu():
            return super().sleep(level)  # type: ignore[no-any-return,misc]
        if level == 2:
            buffers = self.model_runner.pipeline.named_buffers()
            self._sleep_saved_buffers = {name: buffer.cpu().clone() for name, buffer in buffers}
        # Queued work must finish before its memory is unmapped.
        current_omni_platform.synchronize()
        before = current_omni_platform.get_free_memory()
        _allocator().sleep(offload_tags=("weights",) if level == 1 else ())
        current_omni_platform.empty_cache()
        current_omni_platform.synchronize()
        freed = current_omni_platform.get_free_memory() - before
        logger.info("sleep level %d freed %.2f GiB", level, freed / GIB)
        return True

    def wake_up(self, tags: list[str] | None = None) -> bool:
        """Allocate memory again: all of it, or the parts with one of `tags`. Buffers are restored with the weights."""
        if not current_omni_platform.is_npu():
            return super().wake_up(tags)  # type: ignore[no-any-return,misc]
        _allocator().wake_up(tags=tags)
        current_omni_platform.synchronize()
        if tags is None or "kv_cache" in tags:
            self.model_runner.refresh_diffusion_kv_block_table_layout()
        if tags is None or "weights" in tags:
            for name, buffer in self.model_runner.pipeline.named_buffers():
                if name in self._sleep_saved_buffers:
                    buffer.data.copy_(self._sleep_saved_buffers[name])
            self._sleep_saved_buffers = {}
        return True


def _allocator() -> Any:
    from vllm_ascend.device_allocator.camem import CaMemAllocator

    return CaMemAllocator.get_instance()


@contextmanager
def _pool(allocator: Any, tag: str) -> Iterator[None]:
    with npu_empty_cache.apply(), allocator.use_memory_pool(tag=tag):
        yield
