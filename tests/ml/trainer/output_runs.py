"""Runs that train nothing and send results: their checkpoints, events and files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from verl_omni.trainer import checkpoints, main_diffusion


class CountingWriter:
    """Keeps the last values of metrics."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}

    def set(self, metric: Any, value: float, **labels: str) -> None:
        self.values[metric.name] = value

    def add(self, metric: Any, value: float, **labels: str) -> None:
        self.values[metric.name] = self.values.get(metric.name, 0) + value


def save(run: main_diffusion.Run, step: int, *, keep: int = 0, adapter: bool = True) -> None:
    def write(folder: Path) -> None:
        (folder / "state").mkdir()
        (folder / "state" / "optimizer").write_bytes(b"o" * 1000)
        if adapter:
            (folder / "lora").mkdir()
            (folder / "lora" / "weights.safetensors").write_bytes(bytes([step]) * 1000)

    path = checkpoints.save(run.folder.path / "checkpoints", step, write, keep=keep, run=1)
    run.folder.event("checkpoint", step=step, path=str(path))


def events(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "progress.jsonl").read_text().splitlines()]


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
