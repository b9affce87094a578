"""A wall clock that jumps in a running process, by a library that is loaded before all others (`shifted_clock.c`)."""

import struct
import sys
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.processes import run


@dataclass(frozen=True, slots=True)
class ShiftedClock:
    """The clock of the processes that `python` starts.

    Attributes:
        python: a program that runs this Python with the clock.
    """

    file: Path
    python: Path

    def shift(self, seconds: int) -> None:
        """Set the clock ahead of the machine's, or behind it, from now on."""
        with self.file.open("r+b") as file:
            file.write(struct.pack("=q", seconds))


def shifted_clock(folder: Path) -> ShiftedClock:
    """A clock that is right at first; its files are in a folder.

    Raises:
        CommandFailed, ToolMissing: the library cannot be compiled.
    """
    library, file, python = (folder / name for name in ("shifted_clock.so", "seconds", "python"))
    source = Path(__file__).with_suffix(".c")
    run(["cc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", f"-o{library}", str(source)])
    file.write_bytes(bytes(8))
    variables = f"LD_PRELOAD='{library}' SHIFTED_CLOCK_FILE='{file}'"
    python.write_text(f"#!/bin/sh\nexec env {variables} '{sys.executable}' \"$@\"\n", encoding="utf-8")
    python.chmod(0o755)
    return ShiftedClock(file, python)
