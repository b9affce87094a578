"""Files in shared memory that a test leaves, told from files of other programs on the machine."""

import contextlib
import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil

from omni_operator.cli.local.processes import mapped_files

FOLDER = Path("/dev/shm")
POLL_S = 0.2
LOOKS = 10  # for the process that has a new file open, which may be killed before the first


class SharedMemoryWatch(threading.Thread):
    """Notes whose new files are, while their processes live: a killed process leaves its semaphores, without a name.

    Args:
        own: PIDs of the test's processes.

    Attributes:
        before: files that were there at the start.
        of_others: new files that only processes of others had open.
    """

    def __init__(self, own: Callable[[], set[int]]) -> None:
        super().__init__(daemon=True)
        self._own = own
        self._ended = threading.Event()
        self.before = files()
        self.of_others: set[str] = set()
        self._seen = set(self.before)
        self._unknown = dict[str, int]()
        self.start()

    def run(self) -> None:
        while not self._ended.wait(POLL_S):
            self.look()

    def left(self, *, killed: bool = False) -> set[str]:
        """New files that may be the test's, also those that its processes have open.

        Args:
            killed: leave out semaphores, of 32 bytes each. A killed process's semaphores are removed by its resource
                tracker, which itself may be killed before; on a busy machine, one or two stay.
        """
        new = files() - self.before - self.of_others
        return {file for file in new if not Path(file).name.startswith("sem.")} if killed else new

    def stop(self) -> None:
        """End the thread."""
        self._ended.set()
        self.join()

    def look(self) -> None:
        """Find out whose the files are that were made since the last look."""
        new = files() - self._seen
        self._seen |= new
        self._unknown |= dict.fromkeys(new, LOOKS)
        if not self._unknown:
            return
        own_pids = self._own()
        users = users_of(self._unknown)
        own_pids |= self._own()  # a process that was started meanwhile
        self.of_others |= {file for file, pids in users.items() if pids and not pids & own_pids}
        self._unknown = {file: looks - 1 for file, looks in self._unknown.items() if not users[file] and looks > 1}


def files() -> set[str]:
    """Paths of all files in shared memory."""
    return {str(path) for path in FOLDER.iterdir()}


def users_of(paths: Iterable[str]) -> dict[str, set[int]]:
    """PIDs of the processes that have each file mapped."""
    inodes: dict[str, int] = {}
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            inodes[path] = os.stat(path).st_ino
    mapped = {pid: mapped_files(pid, FOLDER) for pid in psutil.pids()}
    return {path: {pid for pid, mapped_inodes in mapped.items() if inodes.get(path) in mapped_inodes} for path in paths}
