"""vLLM's worker of a language model on a CPU."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from typing_extensions import override
from vllm.utils.torch_utils import set_random_seed
from vllm.v1.worker.cpu_model_runner import CPUModelRunner
from vllm.v1.worker.gpu_worker import Worker, init_worker_distributed_environment
from vllm.v1.worker.worker_base import CompilationTimes
from vllm.v1.worker.workspace import init_workspace_manager

from verl_omni.compat import slot_mapping as compat_slot_mapping
from verl_omni.platforms.cpu import paged_attention
from verl_omni.platforms.cpu.memory import available_memory


class TorchKernelModelRunner(CPUModelRunner):
    """vLLM's CPU runner, with a torch version of a kernel that only vLLM's CPU build has."""

    @override
    def _postprocess_triton(self) -> None:
        compat_slot_mapping.apply(compute_slot_mapping)


class TorchWorker(Worker):
    """vLLM's worker on a CPU. Its sleep and wake do nothing: upstream's need vLLM's CUDA memory pool."""

    model_runner_cls: type[TorchKernelModelRunner] = TorchKernelModelRunner

    @override
    def init_device(self) -> None:
        self.device = torch.device("cpu")
        init_worker_distributed_environment(
            self.vllm_config, self.rank, self.distributed_init_method, self.local_rank, "gloo"
        )
        set_random_seed(self.model_config.seed)
        init_workspace_manager(self.device, 1)
        self.use_v2_model_runner = False
        self.model_runner = self.model_runner_cls(self.vllm_config, self.device)

    @override
    def determine_available_memory(self) -> int:
        """Bytes for the key-value cache.

        Enough for `max_num_seqs` requests of full length, but at most `gpu_memory_utilization` of the free memory.
        """
        if configured := self.cache_config.kv_cache_memory_bytes:
            return int(configured)
        per_request = sum(spec.max_memory_usage_bytes(self.vllm_config) for spec in self.get_kv_cache_spec().values())
        available, _ = available_memory()
        free = int(available * self.cache_config.gpu_memory_utilization)
        return min(per_request * self.scheduler_config.max_num_seqs, free)

    @override
    def compile_or_warm_up_model(self) -> CompilationTimes:
        """Compile nothing."""
        set_random_seed(self.model_config.seed)
        return CompilationTimes(language_model=0.0, encoder=0.0)

    @override
    def _maybe_get_memory_pool_context(self, tag: str) -> AbstractContextManager[None]:
        return nullcontext()

    @override
    def sleep(self, level: int = 1) -> bool:
        return True

    @override
    def wake_up(self, tags: list[str] | None = None) -> bool:
        return True


def compute_slot_mapping(
    num_tokens: int,
    max_num_tokens: int,
    query_start_loc: torch.Tensor,
    positions: torch.Tensor,
    block_table: torch.Tensor,
    block_table_stride: int,
    block_size: int,
    slot_mapping: torch.Tensor,
    **launch: Any,
) -> None:
    """vLLM's kernel `ComputeSlotMappingKernel`: the slot of each token, and `PAD_ID` in the rest of the buffer.

    Args:
        num_tokens: number of tokens in the batch.
        max_num_tokens: length of `slot_mapping`.
        query_start_loc: int32 [requests + 1].
        positions: int64 [tokens].
        block_table: int32 [requests, blocks].
        slot_mapping: int64 [max_num_tokens], written in place.
    """
    counts = query_start_loc[1:] - query_start_loc[:-1]
    owners = torch.repeat_interleave(torch.arange(len(counts)), counts.to(torch.int64))
    slots = paged_attention.slot_indices(positions[:num_tokens], owners, block_table, block_size)
    slot_mapping[:num_tokens] = slots
    slot_mapping[num_tokens:] = paged_attention.PADDING
