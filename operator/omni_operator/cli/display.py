"""Showing a run: a bar on a terminal, a line a step anywhere else."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.spinner import Spinner
from rich.text import Text
from typing_extensions import override

from . import progress
from .progress import Known


class Display(Protocol):
    """What a run is shown on."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def note(self, text: str) -> None:
        """A line that stays."""

    def event(self, event: Mapping[str, Any], known: Known) -> None:
        """Something happened; `known` includes it."""


class Lines(Display):
    """A line for every step, phase and evaluation."""

    def __init__(self, console: Console) -> None:
        self._console = console

    @override
    def __enter__(self) -> Self:
        return self

    @override
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    @override
    def note(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    @override
    def event(self, event: Mapping[str, Any], known: Known) -> None:
        if event.get("event") == "phase":
            self.note(f"{known.phase} ...")
        if event.get("event") == "step" and "reward/mean" in event:
            self.note(progress.step_line(event, known.total))
        if text := progress.announcement(event):
            self.note(text)


class Bar(Display):
    """What takes the time, the last step's numbers and a bar, which stay at the bottom; other lines scroll above them.

    In a line with the numbers, a bar of a terminal of 80 columns would have no room for the count of steps.
    """

    def __init__(self, console: Console, name: str) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}"),
            TimeElapsedColumn(),
            console=console,
            expand=True,
        )
        self._task = self._progress.add_task(name, total=None, left="")
        self._spinner = Spinner("dots", text=Text(Known().phase))
        self._numbers: list[Text] = []
        self._live = Live(self._layout(), console=console, refresh_per_second=4, transient=False)

    @override
    def __enter__(self) -> Self:
        self._live.start()
        return self

    @override
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.update(Group(*self._numbers, self._progress), refresh=True)
        self._live.stop()

    @override
    def note(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False)

    @override
    def event(self, event: Mapping[str, Any], known: Known) -> None:
        self._spinner.update(text=Text(self._status(known)))
        self._progress.update(
            self._task, total=known.total, completed=known.step, left=self._left(known), refresh=False
        )
        if known.last is not None:
            self._numbers = [Text(self._figures(known.last), no_wrap=True, overflow="ellipsis")]
            self._live.update(self._layout())
        if text := progress.announcement(event):
            self.note(text)

    def _layout(self) -> Group:
        return Group(self._spinner, *self._numbers, self._progress)

    @staticmethod
    def _status(known: Known) -> str:
        if known.last is None:
            return known.phase
        times = [
            f"{name} {progress.seconds(known.last[key])}"
            for name in progress.PHASES
            if known.last.get(key := f"timing_s/{name}") is not None
        ]
        return f"step {known.step}: " + ", ".join(times)

    @staticmethod
    def _figures(last: Mapping[str, Any]) -> str:
        parts = [progress.reward(last), f"weights v{last.get('weights/version', '?')}"]
        if (speed := last.get("images_per_s")) is not None:
            parts.insert(1, f"{progress.number(speed)} images/s")
        return "  ".join(parts)

    @staticmethod
    def _left(known: Known) -> str:
        eta = known.last.get("eta_s") if known.last is not None else None
        return f"ETA {progress.duration(eta)}" if eta is not None else ""


def display(name: str, console: Console, *, plain: bool) -> Display:
    """A bar where someone watches a terminal, else lines."""
    return Lines(console) if plain or not console.is_terminal else Bar(console, name)
