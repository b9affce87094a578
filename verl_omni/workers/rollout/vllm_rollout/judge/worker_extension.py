"""`JudgeWorkerExtension`: ends the engine of a judge when its server has died."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import select
import signal
import threading
from typing import Any

import psutil
from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension

ENGINE_PROCESS = "EngineCore"  # vLLM's name of the process that starts its workers


class JudgeWorkerExtension(vLLMColocateWorkerExtension):  # type: ignore[misc]
    """Mixed into vLLM's worker.

    A worker ends with the engine's process that started it (verl sets the signal of a parent's death), but that process
    waits for requests of a server that was killed, and holds the accelerators' memory. So its worker ends it.
    """

    def __new__(cls, **kwargs: Any) -> JudgeWorkerExtension:
        found: JudgeWorkerExtension = super().__new__(cls, **kwargs)
        parent = multiprocessing.parent_process()
        if parent is not None and parent.name.startswith(ENGINE_PROCESS) and parent.pid is not None:
            server = psutil.Process(parent.pid).ppid()
            threading.Thread(
                target=end_with, args=(server, parent.pid), name="end with the server", daemon=True
            ).start()
        return found


def end_with(server: int, engine: int) -> None:
    """Wait until the process `server` has ended, then kill its child `engine`, the parent of this process."""
    with contextlib.suppress(ProcessLookupError):  # it has ended already
        watched = os.pidfd_open(server)
        try:
            select.select([watched], [], [])  # readable when the process has ended
        finally:
            os.close(watched)
    if os.getppid() == engine:  # otherwise its PID may be that of another process by now
        os.kill(engine, signal.SIGKILL)
