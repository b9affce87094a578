"""A call in a thread, during which the calling thread reads requests to stop."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

POLL_SECONDS = 1.0
JOIN_SECONDS = 30.0
T = TypeVar("T")


def watched(call: Callable[[], T], poll: Callable[[], None], at_the_end: Callable[[Callable[[], None]], None]) -> T:
    """The result of `call`; `poll` is called every `POLL_SECONDS` until then, and its error is raised at once.

    Args:
        call: runs in a thread, and is left alone if `poll` raises.
        at_the_end: gets what waits for such a thread. A thread that is in a call of Ray must not outlive Ray.

    Raises:
        BaseException: of `call`, or of `poll`.
    """
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(call())
        except BaseException as error:  # noqa: BLE001  raised again below
            result.set_exception(error)

    # Not of an executor, which the interpreter joins at its exit.
    thread = threading.Thread(target=run, name="watched-call", daemon=True)
    thread.start()
    try:
        while True:
            try:
                return result.result(POLL_SECONDS)
            except TimeoutError:
                if result.done():
                    return result.result()  # the call's own, or it has ended in this moment
            poll()
    finally:
        if not result.done():
            at_the_end(lambda: thread.join(JOIN_SECONDS))
