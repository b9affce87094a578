"""The parts of a step's samples, in order, while later parts are generated."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from typing import TypeVar

JOIN_SECONDS = 30.0
Part = TypeVar("Part")
Result = TypeVar("Result")


def in_order(
    parts: Sequence[Part], make: Callable[[Part], Result], at_the_end: Callable[[Callable[[], None]], None]
) -> Generator[Result]:
    """The result of each part; a thread makes one after the other, whatever the caller does meanwhile.

    The next part is sent when the last one is made: the engine would put parts that wait together into one batch.

    Args:
        at_the_end: gets what waits for a thread that is left: one in a call of Ray must not outlive Ray.

    Raises:
        BaseException: what `make` raised for the next part; no further part is made.
    """
    results: list[Future[Result]] = [Future() for _ in parts]
    is_closed = threading.Event()

    def run() -> None:
        for part, result in zip(parts, results, strict=True):
            if is_closed.is_set():
                return
            try:
                result.set_result(make(part))
            except BaseException as error:  # noqa: BLE001  raised where the result is taken
                result.set_exception(error)
                return

    # Not of an executor, which the interpreter joins at its exit.
    thread = threading.Thread(target=run, name="generation-of-parts", daemon=True)
    thread.start()
    try:
        for result in results:
            yield result.result()
    finally:
        is_closed.set()
        if not results[-1].done():
            at_the_end(lambda: thread.join(JOIN_SECONDS))
