"""The results of calls that a step makes in parts, in order, while later parts are being made."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from typing import TypeVar

JOIN_SECONDS = 30.0
SENT = 2  # the engine generates a part, and the next one waits there
Part = TypeVar("Part")
Result = TypeVar("Result")


def in_order(
    parts: Sequence[Part], make: Callable[[Part], Result], at_the_end: Callable[[Callable[[], None]], None]
) -> Generator[Result]:
    """The result of each part, in order; a thread makes each, at most `SENT` of them at a time.

    A part is sent as soon as the last but one before it is made, before the caller gets the result of that one.

    Args:
        at_the_end: gets what waits for a thread that is left: one in a call of Ray must not outlive Ray.

    Raises:
        BaseException: what `make` raised for the next part; no further part is sent.
    """
    waiting = deque(parts)
    sent: deque[tuple[threading.Thread, Future[Result]]] = deque()
    try:
        while waiting or sent:
            while waiting and len(sent) < SENT:
                sent.append(_start(make, waiting.popleft()))
            _, future = sent[0]
            made = future.result()
            sent.popleft()
            if waiting:
                sent.append(_start(make, waiting.popleft()))
            yield made
    finally:
        for thread, _ in sent:
            at_the_end(_joins(thread))


def _start(make: Callable[[Part], Result], part: Part) -> tuple[threading.Thread, Future[Result]]:
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(make(part))
        except BaseException as error:  # noqa: BLE001  raised where the result is taken
            future.set_exception(error)

    # Not of an executor, which the interpreter joins at its exit.
    thread = threading.Thread(target=run, name="generation-of-a-part", daemon=True)
    thread.start()
    return thread, future


def _joins(thread: threading.Thread) -> Callable[[], None]:
    return lambda: thread.join(JOIN_SECONDS)
