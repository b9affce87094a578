"""Reading a file of JSON lines while another process writes it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class MalformedLine:
    """A whole line that is not a JSON object: the writer was killed in the middle of it, or is not ours."""

    text: str


Record = dict[str, Any] | MalformedLine


class JsonLinesReader:
    """Whole lines that were appended since the last look; a line without its end waits for the next look.

    Starts at the file's present end. A file that does not exist yet is an empty one.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._end_last_line()
        self._offset = path.stat().st_size if path.exists() else 0

    def read_new(self) -> Iterator[Record]:
        """Records of the lines that are complete by now."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            if line.strip():
                yield _record(line)

    def _end_last_line(self) -> None:
        """A killed writer may have left half a line; the next one must not be glued to it."""
        if not self.path.exists():
            return
        with self.path.open("rb+") as file:
            size = file.seek(0, 2)
            if size and (file.seek(-1, 2), file.read(1))[1] != b"\n":
                file.write(b"\n")


def read_records(path: Path) -> Iterator[Record]:
    """Every whole line of a file that nobody writes any more."""
    data = path.read_bytes() if path.exists() else b""
    for line in data[: data.rfind(b"\n") + 1].splitlines():
        if line.strip():
            yield _record(line)


def _record(line: bytes) -> Record:
    try:
        record = json.loads(line)
    except ValueError:
        return MalformedLine(line.decode("utf-8", "replace"))
    return record if isinstance(record, dict) else MalformedLine(line.decode("utf-8", "replace"))
