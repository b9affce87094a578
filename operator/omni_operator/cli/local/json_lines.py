"""JSON lines of a file that another process appends to."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class MalformedLine:
    """A line that is not a JSON object, for example because the writer was killed while writing it."""

    text: str


Record = dict[str, Any] | MalformedLine


class JsonLinesReader:
    """Reader of the complete lines appended since the last read; an incomplete line is left for the next read.

    Starts at the current end of the file. A file that does not exist yet counts as empty.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._end_last_line()
        self._offset = path.stat().st_size if path.exists() else 0

    def read_new(self) -> Iterator[Record]:
        """Records of the lines that were completed since the last call."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        complete = data[: data.rfind(b"\n") + 1]
        self._offset += len(complete)
        for line in complete.splitlines():
            if line.strip():
                yield _record(line)

    def _end_last_line(self) -> None:
        """End an incomplete last line, which a killed writer leaves, so that the next line does not extend it."""
        if not self.path.exists():
            return
        with self.path.open("rb+") as file:
            size = file.seek(0, 2)
            if size and (file.seek(-1, 2), file.read(1))[1] != b"\n":
                file.write(b"\n")


def read_records(path: Path) -> Iterator[Record]:
    """Every complete line of a file; an empty file if it does not exist."""
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
