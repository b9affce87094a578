"""Summary of a finished run: what it learned and where its files are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omni_operator.cli import console

from . import run_folder, run_text
from .json_lines import MalformedLine, read_records
from .run_state import evaluation


def summary(folder: Path) -> list[str]:
    """Reward before and after, and the paths of checkpoint and report."""
    lines = [line for line in read_records(folder / run_folder.METRICS) if not isinstance(line, MalformedLine)]
    return [*_rewards(lines), *_paths(folder)]


def _rewards(lines: list[dict[str, Any]]) -> list[str]:
    """Held-out reward at the first and last evaluation; without evaluations, training reward of both steps."""
    held_out = [result for line in lines if (result := evaluation(line))]
    if held_out:
        before = held_out[0]
        after = held_out[-1]
        ends = [f"{run_text.evaluation_text(result)} at step {result.step}" for result in (before, after)]
        images = f" ({after.images} images)" if after.images else ""
        return [f"held-out reward {' -> '.join(ends if before != after else ends[:1])}{images}"]
    steps = [line for line in lines if line.get("reward/mean") is not None or line.get("actor/loss") is not None]
    if not steps:
        return ["no step finished"]
    first, last = (", ".join(run_text.learning_texts(line)) for line in (steps[0], steps[-1]))
    return [f"training {f'{first} -> ' if len(steps) > 1 else ''}{last} at step {steps[-1]['step']}"]


def _paths(folder: Path) -> list[str]:
    paths = []
    if (checkpoint := run_folder.last_checkpoint(folder)) is not None:
        paths.append(f"checkpoint: {console.short_path(folder / 'checkpoints' / f'step_{checkpoint:06d}')}")
    if (folder / run_folder.REPORT).is_file():
        paths.append(f"report: {console.short_path(folder / run_folder.REPORT)}")
    return paths
