"""The run folder: the only thing a run leaves, and the contract with whoever watches it (docs/run-folder.md)."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from PIL import Image

from verl_omni.trainer.machine import describe_machine, source_commit

STRIP_FRAMES = 4
VERSIONED = ("omni-operator", "verl", "vllm", "vllm-omni", "ray", "torch", "diffusers", "peft", "transformers")


@dataclass(frozen=True, slots=True)
class Sample:
    """A picture or video kept for the report."""

    prompt: str
    seed: int
    score: float
    image: torch.Tensor  # uint8 [C, H, W] or [T, C, H, W]


class RunFolder:
    """Writes below one folder. Lines are appended and flushed; whole files are written aside and renamed.

    Args:
        tell: is given every event too.
    """

    def __init__(self, path: Path, tell: Callable[[Mapping[str, Any]], None] = lambda event: None) -> None:
        self.path, self.tell = path, tell
        path.mkdir(parents=True, exist_ok=True)

    def start(self, config: DictConfig, *, resumed_from: int | None) -> None:
        """Record settings and versions, and drop the metrics of steps that a resumed run makes again."""
        self._write("config.yaml", OmegaConf.to_yaml(config, resolve=True))
        self._write("versions.json", json.dumps(_versions(), indent=2) + "\n")
        self._write("machine.json", json.dumps(describe_machine(), indent=2) + "\n")
        lines = self._lines("metrics.jsonl") if resumed_from is not None else []
        kept = [line for line in lines if line["step"] <= (resumed_from or 0)]
        self._write("metrics.jsonl", "".join(json.dumps(line) + "\n" for line in kept))
        self.event("start", total_steps=config.trainer.total_training_steps, resumed_from=resumed_from)

    def has_evaluation(self, step: int) -> bool:
        """Whether the metrics of `step` hold an evaluation already."""
        return any(line["step"] == step and "val/reward/mean" in line for line in self._lines("metrics.jsonl"))

    def event(self, event: str, **fields: Any) -> None:
        """Tell whoever watches."""
        self._tell({"event": event, **fields})

    def step(self, metrics: Mapping[str, float], eta_s: float | None = None, samples: int | None = None) -> None:
        """Record the metrics of a step; `step` must be among them.

        Args:
            eta_s: seconds that are left. samples: drawn for training since this process began.
        """
        line = {name: _plain(value) for name, value in metrics.items()}
        self._append("metrics.jsonl", line)
        self._tell({"event": "step", **line, "eta_s": eta_s, "samples": samples})

    def samples(self, step: int, samples: Sequence[Sample]) -> None:
        """Keep samples of an evaluation as pictures."""
        folder = self.path / "samples" / f"step_{step:06d}"
        folder.mkdir(parents=True, exist_ok=True)
        index = []
        for place, sample in enumerate(samples):
            name = f"{place:02d}.png"
            Image.fromarray(still(sample.image).permute(1, 2, 0).numpy()).save(folder / name)
            index.append({"file": name, "prompt": sample.prompt, "seed": sample.seed, "score": sample.score})
        atomic_write(folder / "index.json", json.dumps(index, indent=2) + "\n")

    def _tell(self, event: Mapping[str, Any]) -> None:
        self._append("progress.jsonl", event)
        self.tell(event)

    def _write(self, name: str, text: str) -> None:
        atomic_write(self.path / name, text)

    def _append(self, name: str, record: Mapping[str, Any]) -> None:
        with (self.path / name).open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def _lines(self, name: str) -> list[dict[str, Any]]:
        """Whole lines of a file; the last one may have been cut off by a kill."""
        path = self.path / name
        if not path.exists():
            return []
        text = path.read_text(encoding="utf-8")
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines() if line]


def still(sample: torch.Tensor) -> torch.Tensor:
    """A picture [C, H, W] as it is; of a video [T, C, H, W], up to four frames side by side, first and last among them.

    Returns:
        [C, H, W], or [C, H, frames * W].
    """
    if sample.ndim == 3:
        return sample
    shown = torch.linspace(0, len(sample) - 1, min(len(sample), STRIP_FRAMES)).round().long()
    return torch.cat(list(sample[shown]), dim=-1)


def atomic_write(path: Path, text: str) -> None:
    """Write a file so that it is there whole or not at all (write aside, fsync, rename)."""
    descriptor, aside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(aside, 0o644)
        os.replace(aside, path)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise


def _plain(value: Any) -> Any:
    """A JSON number; JSON has no word for what is not finite."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        value = float(value)
    return value if isinstance(value, int) or math.isfinite(value) else None


def _versions() -> dict[str, str]:
    found = {}
    for name in VERSIONED:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    if commit := source_commit():
        found["commit"] = commit
    return found
