"""What a person sees of a run: events of `progress.jsonl` -> a progress bar, or plain lines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

Event = dict[str, Any]


class Tail:
    """New whole lines of a file that somebody else appends to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = path.stat().st_size if path.exists() else 0

    def events(self) -> Iterator[Event]:
        """Events since the last call; a line that is not finished yet is left for the next one."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self.offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self.offset += len(whole)
        for line in whole.splitlines():
            yield json.loads(line)


class Display(Protocol):
    """Shows events as they come."""

    def __enter__(self) -> Display: ...
    def __exit__(self, *error: object) -> None: ...
    def show(self, event: Event) -> None:
        """Show one event."""


def display(console: Console) -> Display:
    """A progress bar on a terminal, a line an event elsewhere."""
    return Bar(console) if console.is_terminal else Lines(console)


class Lines:
    """A line for each phase, step and evaluation."""

    def __init__(self, console: Console) -> None:
        self.console, self.total = console, 0

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing to put back."""

    def show(self, event: Event) -> None:
        """Print the event."""
        if event["event"] == "start":
            self.total = event["total_steps"]
        if text := sentence(event, self.total):
            self.console.print(text, markup=False, highlight=False, soft_wrap=True)


class Bar:
    """A bar over the steps; evaluations and checkpoints are printed above it."""

    def __init__(self, console: Console) -> None:
        self.console, self.total = console, 0
        self.progress = Progress(
            SpinnerColumn(),
            BarColumn(bar_width=28),
            MofNCompleteColumn(),
            TextColumn("{task.description}"),
            console=console,
        )
        self.task = self.progress.add_task("starting", total=None)

    def __enter__(self) -> Bar:
        self.progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.progress.stop()

    def show(self, event: Event) -> None:
        """Move the bar, or print above it."""
        match event["event"]:
            case "start":
                self.total = event["total_steps"]
                self.progress.update(self.task, total=self.total, completed=event["resumed_from"] or 0)
            case "phase":
                self.progress.update(self.task, description=event["text"])
            case "step" if "reward/mean" in event:
                self.progress.update(self.task, completed=event["step"], description=_status(event))
        if event["event"] not in ("start", "phase", "step") or "val/reward/mean" in event:
            shown = {**event, "reward/mean": None} if event["event"] == "step" else event
            if text := sentence(shown, self.total):
                self.progress.console.print(text, markup=False, highlight=False)


def sentence(event: Event, total: int) -> str | None:
    """One line about an event, or None when there is nothing to say."""
    match event["event"]:
        case "start" if event["resumed_from"] is not None:
            return f"going on after step {event['resumed_from']} of {event['total_steps']}"
        case "phase":
            return f"{event['text']} …"
        case "step":
            parts = [f"step {event['step']}/{total}"]
            if event.get("reward/mean") is not None:
                parts.append(_status(event))
            if "val/reward/mean" in event:
                parts.append(evaluation(event))
            return "  ".join(parts)
        case "checkpoint":
            return f"checkpoint {event['path']}"
        case "warning" | "error" | "stopped":
            return f"{event['event']}: {event['message']}"
        case _:
            return None


def evaluation(event: Event) -> str:
    """The held-out reward with its standard error, and the share of right pictures where a scorer says it."""
    text = f"held-out reward {event['val/reward/mean']:.3f} ± {event['val/reward/stderr']:.3f}"
    if event.get("val/correct/mean") is not None:
        text += f", {event['val/correct/mean']:.1%} of {event['val/n']} right"
    return text


def _status(event: Event) -> str:
    seconds = "  ".join(
        f"{name} {event[f'timing_s/{name}']:.1f}s"
        for name in ("generate", "reward", "update", "sync")
        if event.get(f"timing_s/{name}") is not None
    )
    left = event.get("eta_s")
    return (
        f"reward {event['reward/mean']:.3f} ± {event['reward/std']:.3f}  {event['images_per_s']:.1f} images/s  "
        f"{seconds}  weights v{event['weights/version']}" + (f"  {_duration(left)} left" if left else "")
    )


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{rest:02d}s"
