"""Peak memory of a process tree."""

from __future__ import annotations

import threading

import psutil

SECONDS = 0.5  # between two samples


class PeakMemory:
    """Largest sum of the proportional set sizes of a process and its descendants, in `bytes`."""

    def __init__(self, pid: int) -> None:
        self.root, self.bytes = psutil.Process(pid), 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._stop.wait(SECONDS):
            self.bytes = max(self.bytes, _proportional_set_size(self.root))


def _proportional_set_size(root: psutil.Process) -> int:
    """Bytes of a process and its descendants; processes that end meanwhile do not count."""
    total = 0
    try:
        processes = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0
    for process in processes:
        try:
            total += process.memory_full_info().pss
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return total
