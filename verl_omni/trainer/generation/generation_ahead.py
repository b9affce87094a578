"""Generation of the next batches while the trainer updates, on a schedule that does not depend on timing."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

JOIN_SECONDS = 30.0
Batch = TypeVar("Batch")


class GenerationAhead(Generic[Batch]):
    """Generates the batch of each step `ahead` steps before the trainer needs it, in a thread, one after another.

    The batch of step s has the weights after step s - 1 - `ahead`: each sample comes from one version, the age of every
    sample is known, and the same run has the same samples on a slow machine and on a fast one. The weights may change
    only between `drain` and `start`.

    Args:
        generate: makes the batch of a step with the weights of a version; called in the thread.
        first: step of the checkpoint that the run starts from, whose weights are the oldest there are.
        last: last step of the run.
        is_loss: whether an error of `generate` is the loss of all replicas.
    """

    def __init__(
        self,
        generate: Callable[[int, int], Batch],
        *,
        ahead: int,
        first: int,
        last: int,
        is_loss: Callable[[BaseException], bool] = lambda error: False,
    ) -> None:
        self._generate = generate
        self._ahead = ahead
        self._first = first
        self._last = last
        self._is_loss = is_loss
        self._again: dict[int, int] = {}  # step of a batch that was lost -> the version that generates it instead
        self._started = first
        self._batches: dict[int, Future[Batch]] = {}
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None  # the last; `drain` has awaited the batches of those before

    def version(self, step: int) -> int:
        """Version of the weights that generate the batch of a step."""
        return self._again.get(step, max(self._first, step - 1 - self._ahead))

    def start(self, version: int) -> None:
        """Start to generate the batches of the published version, and restart lost batches.

        Batches of earlier versions must have been drained.
        """
        futures: dict[int, Future[Batch]] = {}
        for step, batch in self._batches.items():
            if batch.done() and (error := batch.exception()) is not None and self._is_loss(error):
                self._again[step] = version
                futures[step] = Future()
        while self._started < self._last and self.version(self._started + 1) <= version:
            self._started += 1
            futures[self._started] = Future()
        self._batches |= futures
        if futures:
            # Not of an executor, which the interpreter joins at its exit, also after the engines are gone.
            self._thread = threading.Thread(target=self._run, args=(futures,), name="generation", daemon=True)
            self._thread.start()

    def take(self, step: int) -> Batch:
        """The batch of a step; waits for it.

        Raises:
            Exception: what `generate` raised for this batch, or for an earlier one. After the loss of all replicas, the
                batch may be taken again once weights are published and `start` was called.
        """
        batch = self._batches[step].result()
        del self._batches[step]
        return batch

    def drain(self) -> None:
        """Wait for all batches that were started.

        Raises:
            Exception: what `generate` raised, other than the loss of all replicas.
        """
        for batch in list(self._batches.values()):
            if (error := batch.exception()) is not None and not self._is_loss(error):
                raise error

    def stop(self) -> None:
        """Start no further batch; the running one ends when its engine is stopped."""
        self._stopping.set()

    def join(self) -> None:
        """Wait for the running generation to end: a thread in a Ray call must not outlive Ray."""
        if self._thread is not None:
            self._thread.join(JOIN_SECONDS)

    def _run(self, batches: dict[int, Future[Batch]]) -> None:
        failure: BaseException | None = None
        for step, batch in batches.items():
            if failure is None and not self._stopping.is_set():
                try:
                    batch.set_result(self._generate(step, self.version(step)))
                    continue
                except BaseException as error:  # noqa: BLE001  raised again where the batch is taken
                    failure = error
            batch.set_exception(failure or RuntimeError("the run has ended"))
