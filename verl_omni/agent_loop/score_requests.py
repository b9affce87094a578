"""`ScoreRequests`: asks reward workers for the scores of samples, of many in one call."""

import asyncio
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from omegaconf import DictConfig
from ray.exceptions import RayActorError
from tensordict import TensorDict
from torch import Tensor
from verl import DataProto

from verl_omni.reward_loop.actor_replies import Unresponsive, reply_of
from verl_omni.reward_loop.scorer_names import lost_worker_text
from verl_omni.utils.columns import objects
from verl_omni.utils.packed_tensors import PackedTensors, pack

NUM_TURNS = "__num_turns__"
UNSCORED = "unscored"  # column for reward workers of references to `prompts` and `responses`, [1, ...], in their place


@dataclass(frozen=True, slots=True)
class UnscoredSamples:
    """Samples on their way to a reward worker: all tensors in one buffer."""

    tensors: PackedTensors
    """`prompts` int64 [1, P] and `responses` [1, ...] of each sample."""
    columns: list[Mapping[str, Any]]
    """The data set's row of each sample, with `__num_turns__` and `tool_extra_fields`."""
    validate: list[bool]
    """Whether each sample belongs to an evaluation."""

    def rows(self) -> list[DataProto]:
        """The samples as reward managers get them, one at a time."""
        rows = zip(self.tensors.rows(), self.columns, self.validate, strict=True)
        return [scored_row(*row) for row in rows]


def scored_row(tensors: Mapping[str, Tensor], columns: Mapping[str, Any], validate: bool) -> DataProto:
    """A sample as a reward manager gets it: a batch of one row."""
    arrays = {name: np.array([value]) if name == NUM_TURNS else objects([value]) for name, value in columns.items()}
    return DataProto(TensorDict(dict(tensors), batch_size=1), arrays, {"validate": validate})


@dataclass(slots=True)
class _Waiting:
    """A sample, and the future of its score."""

    tensors: Mapping[str, Tensor]
    columns: Mapping[str, Any]
    validate: bool
    score: asyncio.Future[Any] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class ScoreRequests:
    """Sends samples to reward workers, to the one with the fewest unscored samples of this process first.

    Samples that are ready at the same time are divided among the workers, and each worker gets its share in one call.

    Args:
        workers: actors with `compute_score`; those with `score_samples` get several samples in a call.
        limit: samples that a worker has at a time; the others wait here.
        deadline_seconds: how long the process of a worker may take to say that it is alive.
        reward: settings of the scorers, for error messages.
    """

    def __init__(self, workers: Sequence[Any], *, limit: int, deadline_seconds: float, reward: DictConfig) -> None:
        self.sent: Counter[int] = Counter()
        """Unscored samples of each worker, by its number."""
        self._workers = workers
        self._limit = limit
        self._deadline = deadline_seconds
        self._reward = reward
        self._waiting: deque[_Waiting] = deque()
        self._calls: set[asyncio.Task[None]] = set()

    async def score(self, tensors: Mapping[str, Tensor], columns: Mapping[str, Any], *, validate: bool) -> Any:
        """The result of a reward worker for a sample, given as `scored_row` takes it.

        Raises:
            TimeoutError: the worker's process did not respond within the deadline; how long a sample waits for other
                samples does not matter.
            RuntimeError: the worker's process has ended.
            Exception: what the reward manager raised.
        """
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._send)  # when all rows of this turn of the loop are here
        waiting = _Waiting(tensors, columns, validate)
        self._waiting.append(waiting)
        return await waiting.score

    def _send(self) -> None:
        self._waiting = deque(waiting for waiting in self._waiting if not waiting.score.done())
        # At most half of a worker's samples in a call, so that it has others while it returns them.
        share = min(-(-len(self._waiting) // len(self._workers)), max(1, self._limit // 2))
        while self._waiting:
            number = min(range(len(self._workers)), key=lambda each: self.sent[each])
            size = min(share, self._limit - self.sent[number], len(self._waiting))
            if size <= 0:
                return  # each worker has enough
            chunk = [self._waiting.popleft() for _ in range(size)]
            self.sent[number] += size
            call = asyncio.ensure_future(self._call(number, chunk))
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)

    async def _call(self, number: int, chunk: list[_Waiting]) -> None:
        call = asyncio.current_task()

        def stop_if_unwanted(_: Any) -> None:
            if call is not None and all(waiting.score.cancelled() for waiting in chunk):
                call.cancel()

        for waiting in chunk:
            waiting.score.add_done_callback(stop_if_unwanted)
        try:
            scores = await self._found(number, chunk)
        except Exception as error:  # noqa: BLE001  raised where each score is awaited
            scores = [error] * len(chunk)
        finally:
            self.sent[number] -= len(chunk)
            if self._waiting:
                self._send()
        for waiting, score in zip(chunk, scores, strict=True):
            if waiting.score.done():
                continue
            if isinstance(score, BaseException):
                waiting.score.set_exception(score)
            else:
                waiting.score.set_result(score)

    async def _found(self, number: int, chunk: Sequence[_Waiting]) -> Sequence[Any]:
        """The result of each sample of a worker, or the exception in its place."""
        worker = self._workers[number]
        if hasattr(worker, "score_samples"):
            samples = UnscoredSamples(
                pack([waiting.tensors for waiting in chunk]),
                [waiting.columns for waiting in chunk],
                [waiting.validate for waiting in chunk],
            )
            scores: Sequence[Any] = await self._reply(number, worker.score_samples.remote(samples))
            return scores
        rows = [scored_row(waiting.tensors, waiting.columns, waiting.validate) for waiting in chunk]
        replies = [self._reply(number, worker.compute_score.remote(row)) for row in rows]
        return await asyncio.gather(*replies, return_exceptions=True)

    async def _reply(self, number: int, reference: Any) -> Any:
        """The reply of a worker, which itself enforces the deadline of a scorer's call."""
        try:
            return await reply_of(self._workers[number], reference, self._deadline)
        except RayActorError as error:  # Ray names the worker only if it has noticed its death already
            raise RuntimeError(lost_worker_text(number, self._reward, error)) from error
        except Unresponsive as error:
            raise TimeoutError(f"reward worker {number} {error}") from error
