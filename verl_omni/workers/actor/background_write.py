"""`BackgroundWrite`: one write of a checkpoint at a time, in a thread of this rank."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait


class BackgroundWrite:
    """Runs one write at a time in a thread, and raises its error where it is asked for."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._write: Future[None] | None = None

    def start(self, write: Callable[[], None]) -> None:
        """Start a write.

        Raises:
            RuntimeError: the last one was not finished with `finish`, so its error might be lost.
        """
        if self._write is not None:
            raise RuntimeError("the last write of a checkpoint was not finished: call finish(wait=True) first")
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._write = self._pool.submit(write)

    def finish(self, *, wait_s: float) -> bool:
        """Whether the last write has ended; true if there was none.

        Args:
            wait_s: seconds to wait for it.

        Raises:
            Exception: the write raised it; after that there is nothing to finish.
        """
        if self._write is None:
            return True
        wait([self._write], timeout=wait_s)
        if not self._write.done():
            return False
        ended = self._write
        self._write = None
        ended.result()
        return True
