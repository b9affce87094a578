"""`DiffusionAgentLoopManager`: verl's manager, with results that do not depend on the number of workers."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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


@dataclass(slots=True)
class SentBatch:
    """A batch that the workers generate."""

    calls: list[Any]
    """One of each worker."""
    padding: int
    """Rows at the end that the caller did not ask for."""
    began: float
    seconds: float = 0.0
    """Until the last call ended; 0 before."""

    def note_end(self, _: Any) -> None:
        """A call has ended."""
        self.seconds = time.perf_counter() - self.began


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
        return await self._output(self._send(prompts))

    def send(self, prompts: DataProto) -> SentBatch:
        """Begin `generate_sequences`; `receive` has its result. Batches are generated in the order of their calls."""
        sent = self._send(prompts)
        for call in sent.calls:
            call.future().add_done_callback(sent.note_end)
        return sent

    @auto_await
    async def receive(self, sent: SentBatch) -> DataProto:
        """Wait for the samples of a batch."""
        output = await self._output(sent)
        if not sent.seconds:  # Ray has not told of the end yet
            sent.note_end(None)
        return output

    @auto_await
    async def abandon(self, batches: Sequence[SentBatch]) -> None:
        """Cancel batches, and wait until nothing of them is generated, scored or stored any more."""
        await self._cancel([call for sent in batches for call in sent.calls])

    def _send(self, prompts: DataProto) -> SentBatch:
        if "priority" not in prompts.non_tensor_batch:
            prompts.non_tensor_batch["priority"] = np.arange(len(prompts), dtype=np.int64)
        padded, padding = pad_dataproto_to_divisor(prompts, len(self.agent_loop_workers))
        chunks = padded.chunk(len(self.agent_loop_workers))
        workers = zip(self.agent_loop_workers, chunks, strict=True)
        began = time.perf_counter()
        return SentBatch([worker.generate_sequences.remote(chunk) for worker, chunk in workers], padding, began)

    async def _output(self, sent: SentBatch) -> DataProto:
        outputs = align(await self._results(sent.calls))
        output = DataProto.concat(outputs)
        metrics = [part.meta_info.pop("metrics") for part in outputs]
        output.meta_info = {"timing": self._performance_metrics(metrics, output), **outputs[0].meta_info}
        return unpad_dataproto(output, sent.padding)

    async def _results(self, calls: Sequence[Any]) -> list[DataProto]:
        """Results of calls of workers. After the first failure, the others are cancelled and awaited."""
        results = [asyncio.ensure_future(call) for call in calls]
        try:
            return list(await asyncio.gather(*results))
        except Exception:
            await self._cancel(calls, results)
            raise

    async def _cancel(self, calls: Sequence[Any], results: Sequence[asyncio.Future[Any]] = ()) -> None:
        for call in calls:
            self.cancel(call)
        if waiting := results or [asyncio.ensure_future(call) for call in calls]:
            await asyncio.wait(waiting, timeout=CANCEL_SECONDS)

    def queued_samples(self, deadline: float) -> int:
        """Number of samples that wait for generation, or are being generated.

        Raises:
            RayError: a worker did not answer within `deadline` seconds.
        """
        return sum(ray.get([worker.queued_samples.remote() for worker in self.agent_loop_workers], timeout=deadline))
