"""What a run came to: better than before, or failed and why."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

from . import console, progress, run_folder
from .following import Malformed, records


def summary(folder: Path) -> list[str]:
    """Reward before and after, and where everything lies."""
    lines = [line for line in records(folder / run_folder.METRICS) if not isinstance(line, Malformed)]
    return [*_learned(lines), *_where(folder)]


def was_stopped(code: int, asked: int) -> bool:
    """PURE: whether a run ended because the user asked `asked` times, and not by itself."""
    by_request = code in (console.INTERRUPTED, -signal.SIGINT, -signal.SIGTERM, -signal.SIGHUP)
    return asked > 1 or (asked == 1 and by_request)


def reason(code: int, failure: str | None, *, out_of_memory: bool) -> str:
    """PURE: one line that says why a trainer ended.

    Args:
        code: of its exit, negative for a signal. failure: what it said itself.
    """
    if code == -signal.SIGKILL or out_of_memory:
        blame = "the kernel killed it for its memory" if out_of_memory else "killed (SIGKILL), often for its memory"
        return f"{blame}; {failure}" if failure else blame
    if failure:
        return failure
    if code < 0:
        return f"ended by {signal.Signals(-code).name}"
    return f"the trainer ended with exit code {code}"


def tail(log: Path, start: int, limit: int) -> list[str]:
    """Lines of a log after byte `start`, at most `limit` bytes of them."""
    if not log.exists():
        return []
    with log.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(start, size - limit))
        return file.read().decode("utf-8", "replace").splitlines()


def _learned(lines: list[dict[str, Any]]) -> list[str]:
    """Prefers held-out prompts; without them, the pictures of the first and the last step."""
    held_out = [found for line in lines if (found := progress.evaluation(line))]
    if held_out:
        before, after = held_out[0], held_out[-1]
        ends = [f"{progress.evaluated(found)} at step {found.step}" for found in (before, after)]
        pictures = f" ({after.pictures} pictures)" if after.pictures else ""
        return [f"held-out reward {' -> '.join(ends if before != after else ends[:1])}{pictures}"]
    steps = [line for line in lines if line.get("reward/mean") is not None]
    if not steps:
        return ["no step was finished"]
    before_line, after_line = steps[0], steps[-1]
    end = f"{progress.reward(after_line)} at step {after_line['step']}"
    return [f"training {progress.reward(before_line)} -> {end}" if len(steps) > 1 else f"training {end}"]


def _where(folder: Path) -> list[str]:
    found = []
    if (checkpoint := run_folder.last_checkpoint(folder)) is not None:
        found.append(f"adapter and state: {folder / 'checkpoints' / f'step_{checkpoint:06d}'}")
    if (folder / run_folder.REPORT).is_file():
        found.append(f"report: {folder / run_folder.REPORT}")
    return found
