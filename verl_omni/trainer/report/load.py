"""What a run folder holds, parsed at the door. Whatever is missing (a young or a broken-off run) is empty."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
Line = dict[str, float | None]
_LINE = TypeAdapter(Line)
T = TypeVar("T")
_VERSIONS = TypeAdapter(dict[str, str])


class Entry(BaseModel):
    """A picture as `index.json` names it: a file of the same folder, never a path elsewhere."""

    model_config = ConfigDict(frozen=True)

    file: str = Field(pattern=r"^\w[\w.-]*\.png$")
    prompt: str
    seed: int
    score: float


_INDEX = TypeAdapter(list[Entry])


class Event(BaseModel):
    """A line of `progress.jsonl`; fields that the report has no use for are ignored."""

    model_config = ConfigDict(frozen=True)

    event: str
    total_steps: int | None = None
    resumed_from: int | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Shown:
    """A picture of an evaluation; `data` is a data URL, `width` and `height` are its pixels."""

    prompt: str
    seed: int
    score: float
    data: str
    width: int
    height: int


@dataclass(frozen=True, slots=True)
class Run:
    """Everything the report is made of. Lines are in order of their steps, one a step."""

    name: str
    lines: Sequence[Line] = ()
    samples: dict[int, list[Shown]] = field(default_factory=dict)
    unreadable_pictures: int = 0
    events: Sequence[Event] = ()
    versions: dict[str, str] = field(default_factory=dict)
    settings: str = ""
    overrides: str = ""
    job: str = ""

    def steps(self) -> list[Line]:
        """Lines of training steps."""
        return [line for line in self.lines if line.get("reward/mean") is not None]

    def evaluations(self) -> list[Line]:
        """Lines with a held-out evaluation."""
        return [line for line in self.lines if line.get("val/reward/mean") is not None]


def load(folder: Path) -> Run:
    """Read a run folder.

    Raises:
        ValueError: a file is there and is not what it should be; the message names it.
    """
    samples, unreadable = _samples(folder / "samples")
    return Run(
        name=folder.resolve().name,
        lines=merged(_text(folder / "metrics.jsonl")),
        samples=samples,
        unreadable_pictures=unreadable,
        events=events(_text(folder / "progress.jsonl")),
        versions=_parsed(_VERSIONS, folder / "versions.json", {}),
        settings=_text(folder / "config.yaml"),
        overrides=_text(folder / "overrides.txt"),
        job=_text(folder / "job.yaml"),
    )


def merged(text: str) -> list[Line]:
    """Whole lines of metrics; of a step that was made again, the last one.

    Raises:
        ValueError: a whole line is not an object of numbers with a step.
    """
    by_step: dict[int, Line] = {}
    for raw in _whole_lines(text):
        try:
            line = _LINE.validate_json(raw)
        except ValidationError as error:
            raise ValueError(f"a line of metrics.jsonl is no object of numbers: {raw[:80]}") from error
        step = line.get("step")
        if step is None or step < 0 or step != int(step):
            raise ValueError(f"a line of metrics.jsonl has no step: {raw[:80]}")
        by_step[int(step)] = line
    return [by_step[step] for step in sorted(by_step)]


def events(text: str) -> list[Event]:
    """Events in their order. A line that a kill cut off is left out, also where a resumed run wrote on behind it."""
    found = []
    for raw in _whole_lines(text):
        try:
            found.append(Event.model_validate_json(raw))
        except ValidationError:  # torn, and of no use to a reader
            continue
    return found


def png_size(data: bytes) -> tuple[int, int] | None:
    """Width and height from a PNG's header, None if it is not one."""
    if len(data) < 24 or not data.startswith(PNG_SIGNATURE) or data[12:16] != b"IHDR":
        return None
    return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")


def _samples(folder: Path) -> tuple[dict[int, list[Shown]], int]:
    """Pictures by step, and the number of those that were named and cannot be read."""
    found: dict[int, list[Shown]] = {}
    unreadable: Counter[str] = Counter()
    for path in sorted(folder.glob("step_*")):
        number = path.name.removeprefix("step_")
        if not (number.isascii() and number.isdigit()):
            continue
        shown = []
        for entry in _parsed(_INDEX, path / "index.json", []):
            picture = path / entry.file
            data = picture.read_bytes() if picture.is_file() else b""
            size = png_size(data)
            if size is None:
                unreadable[path.name] += 1
                continue
            url = f"data:image/png;base64,{base64.b64encode(data).decode()}"
            shown.append(Shown(entry.prompt, entry.seed, entry.score, url, *size))
        if shown:
            found[int(number)] = shown
    return found, unreadable.total()


def _whole_lines(text: str) -> list[str]:
    return [raw for raw in text[: text.rfind("\n") + 1].split("\n") if raw.strip()]


def _parsed(adapter: TypeAdapter[T], path: Path, missing: T) -> T:
    text = _text(path)
    if not text:
        return missing
    try:
        return adapter.validate_json(text)
    except ValidationError as error:
        raise ValueError(f"{path.name} is not what it should be: {error}") from error


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
