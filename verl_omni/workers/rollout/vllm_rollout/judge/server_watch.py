"""Ends the process of a vLLM engine when the process of its server has died."""

import contextlib
import multiprocessing
import os
import select
import signal
import threading

import psutil

ENGINE_PROCESS = "EngineCore"  # vLLM's name of the process that starts its workers


def end_engine_with_server() -> None:
    """In a worker that an engine's process started: kill that process once the server that started it has ended.

    Elsewhere nothing is done: a worker in the engine's own process ends with the server by verl's signal of a parent's
    death.
    """
    parent = multiprocessing.parent_process()
    if parent is not None and parent.name.startswith(ENGINE_PROCESS) and parent.pid is not None:
        server = psutil.Process(parent.pid).ppid()
        threading.Thread(target=_end_with, args=(server, parent.pid), daemon=True).start()


def _end_with(server: int, engine: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has ended already
        watched = os.pidfd_open(server)
        try:
            select.select([watched], [], [])  # readable when the process has ended
        finally:
            os.close(watched)
    if os.getppid() == engine:  # otherwise another process may have its PID by now
        os.kill(engine, signal.SIGKILL)
