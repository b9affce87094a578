"""What a run folder holds, parsed at the door."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

Line = dict[str, float | None]


class Shown(BaseModel):
    """A picture of an evaluation; `data` is a data URL."""

    model_config = ConfigDict(frozen=True)

    prompt: str
    seed: int
    score: float
    data: str


class Run(BaseModel):
    """Everything the report is made of. Lines are in order of their steps, one a step."""

    model_config = ConfigDict(frozen=True)

    name: str
    lines: list[Line]
    samples: dict[int, list[Shown]]
    versions: dict[str, str]
    settings: str

    def steps(self) -> list[Line]:
        """Lines of training steps."""
        return [line for line in self.lines if line.get("reward/mean") is not None]

    def evaluations(self) -> list[Line]:
        """Lines with a held-out evaluation."""
        return [line for line in self.lines if line.get("val/reward/mean") is not None]


def load(folder: Path) -> Run:
    """Read a run folder; whatever is missing (an interrupted run) is empty.

    Raises:
        ValueError: a file is there and is not what it should be.
    """
    return Run(
        name=folder.resolve().name,
        lines=merged(_text(folder / "metrics.jsonl")),
        samples={
            int(path.name.removeprefix("step_")): _samples(path) for path in sorted(folder.glob("samples/step_*"))
        },
        versions=json.loads(_text(folder / "versions.json") or "{}"),
        settings=_text(folder / "config.yaml"),
    )


def merged(text: str) -> list[Line]:
    """Whole lines of metrics; of a step that was made again, the last one."""
    by_step: dict[float, Line] = {}
    for raw in text[: text.rfind("\n") + 1].splitlines():
        if raw.strip():
            line: dict[str, Any] = json.loads(raw)
            if not isinstance(line.get("step"), int):
                raise ValueError(f"a line of metrics.jsonl has no step: {raw[:80]}")
            by_step[line["step"]] = line
    return [by_step[step] for step in sorted(by_step)]


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def _samples(folder: Path) -> list[Shown]:
    index = json.loads(_text(folder / "index.json") or "[]")
    made = []
    for entry in index:
        picture = folder / entry.pop("file")
        if picture.exists():
            data = base64.b64encode(picture.read_bytes()).decode()
            made.append(Shown(**entry, data=f"data:image/png;base64,{data}"))
    return made
