"""The check for files in shared memory that a test leaves, next to other programs of the machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import psutil
import pytest

from tests.ml.engine.shared_memory import SharedMemoryWatch, files, users_of

pytestmark = pytest.mark.slow  # it waits for other processes

PROGRAM = """
import multiprocessing, time
semaphore = multiprocessing.get_context("spawn").Semaphore()
print("there", flush=True)
time.sleep(60)
"""


class Holder:
    """A process with a semaphore, which its killer leaves behind."""

    def __init__(self) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None and self.process.stdout.readline() == "there\n"
        found = users_of(files()).items()
        (self.file,) = (path for path, pids in found if self.process.pid in pids)

    def kill(self) -> None:
        for each in psutil.Process(self.process.pid).children():  # the tracker, which would remove the file
            each.kill()
        self.process.kill()
        self.process.wait()


def test_a_semaphore_of_a_killed_process_is_the_tests_if_the_process_was() -> None:
    own: list[Holder] = []
    watch = SharedMemoryWatch(lambda: {each.process.pid for each in own})
    other = Holder()
    end = time.monotonic() + 30
    while other.file not in watch.of_others:
        assert time.monotonic() < end
        time.sleep(0.05)
    watch.stop()
    own.append(Holder())
    watch.look()
    for each in (own[0], other):
        each.kill()
    try:
        assert watch.left() == {own[0].file}
    finally:
        for each in (own[0], other):
            os.unlink(each.file)
