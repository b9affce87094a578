"""Peak memory of a process tree, and of a GPU."""

import abc
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import psutil

# between two samples
SECONDS = 0.5
DEVICE_SECONDS = 0.02
FILES = "Pss_File"  # pages of mapped files, which the kernel may drop


class _Sampled(abc.ABC):
    """Memory, sampled by a thread until the end of the block."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._samples: list[tuple[float, int]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def between(self, spans: Sequence[tuple[float, float]]) -> int:
        """Largest sample in spans of `time.monotonic`; 0 if there is none."""
        inside = [size for at, size in self._samples if any(start <= at <= end for start, end in spans)]
        return max(inside, default=0)

    def _sample(self) -> None:
        while not self._stop.wait(self._interval):
            size = self.measure()
            self._samples.append((time.monotonic(), size))

    @abc.abstractmethod
    def measure(self) -> int:
        """Bytes in use now."""

    @abc.abstractmethod
    def highest(self) -> dict[str, int]:
        """Peaks by their names in the results."""


class PeakMemory(_Sampled):
    """Largest sum of the proportional set sizes of a process and its descendants.

    Samples are without the pages of mapped files.

    Attributes:
        bytes: with the pages of mapped files. without_files: without them.
    """

    def __init__(self, pid: int) -> None:
        super().__init__(SECONDS)
        self.root = psutil.Process(pid)
        self.bytes = 0
        self.without_files = 0

    def measure(self) -> int:
        """Bytes without mapped files."""
        total, files = _proportional_set_size(self.root)
        self.bytes = max(self.bytes, total)
        self.without_files = max(self.without_files, total - files)
        return total - files

    def highest(self) -> dict[str, int]:
        """Both peaks."""
        return {"peak_bytes": self.without_files, "peak_bytes_with_files": self.bytes}


class PeakDeviceMemory(_Sampled):
    """Largest memory of the first NVIDIA GPU that the driver says is used, less what was used at the start."""

    def __init__(self) -> None:
        super().__init__(DEVICE_SECONDS)
        self._before = _device_memory_used()
        self.bytes = 0

    def measure(self) -> int:
        """Bytes beyond those at the start."""
        used = _device_memory_used() - self._before
        self.bytes = max(self.bytes, used)
        return used

    def highest(self) -> dict[str, int]:
        """The peak."""
        return {"peak_bytes": self.bytes}


def _device_memory_used() -> int:
    import torch

    return int(torch.cuda.device_memory_used(0))


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
        total = total + sizes["Pss"]
        files = files + sizes[FILES]
    return total, files
