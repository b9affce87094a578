"""Destinations of results: the interface, and a folder of a store. `hub_destination` has the Hugging Face hub."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from verl_omni.utils.stores import Store

Key = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class ResultFile:
    """A file to send.

    Attributes:
        name: its path in the destination.
        may_change: it may change while it is sent.
        key: name, size in bytes and time of the last change.
    """

    path: Path
    name: str
    may_change: bool
    key: Key


def result_file(path: Path, name: str, *, may_change: bool) -> ResultFile:
    """The file as it is now; raises FileNotFoundError."""
    status = path.stat()
    return ResultFile(path, name, may_change, (name, status.st_size, status.st_mtime_ns))


class Destination(Protocol):
    """Destination of results."""

    url: str

    def send(self, files: Sequence[ResultFile], title: str, ended: Callable[[], bool]) -> None:
        """Send files that are new or changed since they were sent; the last one only after all the others.

        Args:
            title: description of the files.
            ended: whether time is up; a transfer in progress may then be aborted.

        Raises:
            StoreError: not all files were sent. StoreRefused: retrying will not help.
        """
        ...


class StoreDestination:
    """A folder of an S3-compatible store or of the file system, which takes one file after another."""

    def __init__(self, store: Store) -> None:
        self.url = store.url
        self._store = store
        self._sent: set[Key] = set()

    def send(self, files: Sequence[ResultFile], title: str, ended: Callable[[], bool]) -> None:
        """As `Destination.send`; what was sent before an error is not sent again."""
        for file in files:
            if file.key not in self._sent:
                self._store.send(file.path, file.name)
                self._sent.add(file.key)
