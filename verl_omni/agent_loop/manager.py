"""`DiffusionAgentLoopManager`: verl's manager, with results that do not depend on the number of workers."""

from __future__ import annotations

import asyncio

import numpy as np
import ray
from typing_extensions import override
from verl import DataProto
from verl.experimental.agent_loop.agent_loop import AgentLoopManager
from verl.protocol import pad_dataproto_to_divisor, unpad_dataproto
from verl.utils.ray_utils import auto_await
from verl.utils.skip import SkipManager

from verl_omni.agent_loop.batching import align
from verl_omni.agent_loop.diffusion_agent_loop import DiffusionAgentLoopWorker


class DiffusionAgentLoopManager(AgentLoopManager):  # type: ignore[misc]
    """Runs `DiffusionAgentLoopWorker`s.

    verl's manager refuses workers' results with different keys. Which keys a scorer reports may depend on the sample,
    and a worker does not see the samples of others, so the keys are aligned here.
    """

    agent_loop_workers_class = ray.remote(DiffusionAgentLoopWorker)

    @override
    @auto_await
    @SkipManager.annotate(role="rollout")
    async def generate_sequences(self, prompts: DataProto) -> DataProto:
        """Samples for a batch; keys as in `batching.collate`.

        The same as verl's method (verl/experimental/agent_loop/agent_loop.py), except for `align`, and for batches
        whose size the number of workers does not divide: verl's caller would have to pad them.
        """
        if "priority" not in prompts.non_tensor_batch:
            prompts.non_tensor_batch["priority"] = np.arange(len(prompts), dtype=np.int64)
        padded, padding = pad_dataproto_to_divisor(prompts, len(self.agent_loop_workers))
        chunks = padded.chunk(len(self.agent_loop_workers))
        made = await asyncio.gather(
            *(worker.generate_sequences.remote(c) for worker, c in zip(self.agent_loop_workers, chunks, strict=True))
        )
        outputs = align(made)
        output = DataProto.concat(outputs)
        metrics = [part.meta_info.pop("metrics") for part in outputs]
        output.meta_info = {"timing": self._performance_metrics(metrics, output), **outputs[0].meta_info}
        return unpad_dataproto(output, padding)

    def queued_samples(self, deadline: float) -> int:
        """Number of samples that wait for generation, or are being generated.

        Raises:
            RayError: a worker did not answer within `deadline` seconds.
        """
        return sum(ray.get([worker.queued_samples.remote() for worker in self.agent_loop_workers], timeout=deadline))
