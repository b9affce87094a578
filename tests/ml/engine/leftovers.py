"""A check for leaked resources."""

import contextlib
import gc
import os
import time
from pathlib import Path

import psutil

from omni_operator.cli.local.processes import mapped_files
from tests.ml.engine.replica_driver import SOON, TOKEN
from tests.ml.engine.shared_memory import FOLDER, SharedMemoryWatch, users_of
from verl_omni.weight_sync.buffers import SEGMENT_PREFIX


class Leftovers:
    """Resources that a fault may leak: processes, sockets of updates, and shared memory, counted from its creation.

    Files in shared memory that processes of others have or had open are theirs; several runs may share a machine.
    """

    def __init__(self) -> None:
        self._watch = SharedMemoryWatch(own_processes)
        # Also the files of others, who may end without removing them.
        self.before = {*self._now(), *self._watch.before}

    def none(self, *, killed: bool = False) -> None:
        """Assert that there are no new resources; processes that are ending get time.

        Args:
            killed: a process of Ray that had started others was killed; see `SharedMemoryWatch.left`.
        """
        end = time.monotonic() + SOON
        gc.collect()  # tracebacks of caught errors keep local variables alive
        while leftovers := {key: what for key, what in self._now(killed).items() if key not in self.before}:
            assert time.monotonic() < end, leftovers
            time.sleep(0.05)
        self._watch.stop()

    def _now(self, killed: bool = False) -> dict[str, str]:
        leftovers = {str(path): "socket" for path in Path("/tmp").glob(f"rl-*-{TOKEN}.sock")}
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                command = " ".join(process.cmdline())
                # Ray starts workers at any time. A process that shares memory for the first time starts a
                # tracker, which lives as long as it does.
                of_others = command.startswith("ray::") or "resource_tracker" in command
                if process.status() != psutil.STATUS_ZOMBIE and not of_others:
                    leftovers[f"process {process.pid}"] = command
        own_pids = own_processes()
        left = self._watch.left(killed=killed)
        elsewhere = {file for file, pids in users_of(left).items() if pids - own_pids}
        removed = {path for pid in own_pids for path in mapped_files(pid, FOLDER).values() if SEGMENT_PREFIX in path}
        return leftovers | dict.fromkeys((left - elsewhere) | removed, "shared memory")


def own_processes() -> set[int]:
    """PIDs of this process and all that it started."""
    return {os.getpid(), *(process.pid for process in psutil.Process().children(recursive=True))}
