"""`DiffusionAgentLoopManager`: verl's manager, with results that do not depend on the number of workers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

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

CANCEL_SECONDS = 30.0  # for the other workers to end their rows when one has failed


class DiffusionAgentLoopManager(AgentLoopManager):  # type: ignore[misc]
    """Runs `DiffusionAgentLoopWorker`s.

    verl's manager refuses workers' results with different keys. Which keys a scorer reports may depend on the sample,
    and a worker does not see the samples of others, so the keys are aligned here.
    """

    agent_loop_workers_class = ray.remote(DiffusionAgentLoopWorker)
    cancel: Callable[[Any], Any] = staticmethod(ray.cancel)

    @override
    @auto_await
    @SkipManager.annotate(role="rollout")
    async def generate_sequences(self, prompts: DataProto) -> DataProto:
        """Samples for a batch; keys as in `batching.collate`.

        The same as verl's method (verl/experimental/agent_loop/agent_loop.py), except for `align`, for batches whose
        size the number of workers does not divide, which verl's caller would have to pad, and for a worker that fails:
        the others are cancelled and awaited, so that nothing of this batch is generated, scored or stored after it.
        """
        if "priority" not in prompts.non_tensor_batch:
            prompts.non_tensor_batch["priority"] = np.arange(len(prompts), dtype=np.int64)
        padded, padding = pad_dataproto_to_divisor(prompts, len(self.agent_loop_workers))
        chunks = padded.chunk(len(self.agent_loop_workers))
        workers = zip(self.agent_loop_workers, chunks, strict=True)
        outputs = align(await self._results([worker.generate_sequences.remote(chunk) for worker, chunk in workers]))
        output = DataProto.concat(outputs)
        metrics = [part.meta_info.pop("metrics") for part in outputs]
        output.meta_info = {"timing": self._performance_metrics(metrics, output), **outputs[0].meta_info}
        return unpad_dataproto(output, padding)

    async def _results(self, calls: Sequence[Any]) -> list[DataProto]:
        """Results of calls of workers. After the first failure, the others are cancelled and awaited."""
        results = [asyncio.ensure_future(call) for call in calls]
        try:
            return list(await asyncio.gather(*results))
        except Exception:
            for call in calls:
                self.cancel(call)
            await asyncio.wait(results, timeout=CANCEL_SECONDS)
            raise

    def queued_samples(self, deadline: float) -> int:
        """Number of samples that wait for generation, or are being generated.

        Raises:
            RayError: a worker did not answer within `deadline` seconds.
        """
        return sum(ray.get([worker.queued_samples.remote() for worker in self.agent_loop_workers], timeout=deadline))
