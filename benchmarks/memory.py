"""Peak memory of a process tree."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

SECONDS = 0.5  # between two samples
FILES = "Pss_File"  # pages of mapped files, which the kernel may drop


class PeakMemory:
    """Largest sum of the proportional set sizes of a process and its descendants.

    Attributes:
        bytes: with the pages of mapped files. without_files: without them.
    """

    def __init__(self, pid: int) -> None:
        self.root, self.bytes, self.without_files = psutil.Process(pid), 0, 0
        self._samples: list[tuple[float, int]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def between(self, spans: Sequence[tuple[float, float]]) -> int:
        """Largest sum without mapped files in spans of `time.monotonic`; 0 if no sample is in any."""
        inside = [size for at, size in self._samples if any(start <= at <= end for start, end in spans)]
        return max(inside, default=0)

    def _sample(self) -> None:
        while not self._stop.wait(SECONDS):
            whole, files = _proportional_set_size(self.root)
            self.bytes, self.without_files = max(self.bytes, whole), max(self.without_files, whole - files)
            self._samples.append((time.monotonic(), whole - files))


def _proportional_set_size(root: psutil.Process) -> tuple[int, int]:
    """Bytes of a process and its descendants, and how many of them are of files.

    Processes that end meanwhile do not count.
    """
    total = files = 0
    try:
        processes = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0, 0
    for process in processes:
        try:
            lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text(encoding="ascii").splitlines()[1:]
        except (OSError, psutil.NoSuchProcess):
            continue
        sizes = {name: int(size.split()[0]) << 10 for name, size in (line.split(":") for line in lines)}
        total, files = total + sizes["Pss"], files + sizes[FILES]
    return total, files
