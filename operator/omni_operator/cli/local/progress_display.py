"""Progress of a run on the terminal: a bar, or one line per step where output is not a terminal."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.spinner import Spinner
from rich.text import Text
from typing_extensions import override

from omni_operator.cli.console import without_control

from . import run_text
from .run_state import RunState


class Display(ABC):
    """Output for the progress of a run."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    @abstractmethod
    def note(self, text: str) -> None:
        """Print a line."""

    @abstractmethod
    def event(self, event: Mapping[str, Any], state: RunState) -> None:
        """Show an event; `state` is the state after it."""


class LineDisplay(Display):
    """One line per step, phase and evaluation."""

    def __init__(self, console: Console) -> None:
        self._console = console

    @override
    def note(self, text: str) -> None:
        self._console.print(without_control(text), markup=False, highlight=False, soft_wrap=True)

    @override
    def event(self, event: Mapping[str, Any], state: RunState) -> None:
        if event.get("event") == "phase":
            self.note(f"{state.phase} ...")
        if event.get("event") == "step" and run_text.learning_texts(event):
            self.note(run_text.step_line(event, state.total))
        if text := run_text.announcement(event):
            self.note(text)


class StatusLine(Spinner):
    """A spinner whose text is cut at the end of the line; one of rich is wrapped, whatever its text says."""

    @override
    def render(self, time: float) -> RenderableType:
        line = super().render(time)
        if isinstance(line, Text):
            line.no_wrap = True
            line.overflow = "ellipsis"
        return line


class BarDisplay(Display):
    """Current phase, metrics of the last step and a progress bar at the bottom; other lines scroll above.

    The metrics have a line of their own: next to them, a bar of 80 columns has no room for the step count.
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
        self._spinner = StatusLine("dots", text=Text(RunState().phase))
        self._numbers: list[Text] = []
        self._live = Live(self._layout(), console=console, refresh_per_second=4, transient=False)

    @override
    def __enter__(self) -> Self:
        self._live.start()
        return self

    @override
    def __exit__(self, *error: object) -> None:
        self._progress.update(self._task, left="", refresh=False)
        self._live.update(Group(*self._numbers, self._progress), refresh=True)
        self._live.stop()

    @override
    def note(self, text: str) -> None:
        self._console.print(without_control(text), markup=False, highlight=False)

    @override
    def event(self, event: Mapping[str, Any], state: RunState) -> None:
        status = " ".join(without_control(self._status(state)).split())
        self._spinner.update(text=Text(status))
        self._progress.update(
            self._task, total=state.total, completed=state.step, left=self._left(state), refresh=False
        )
        if state.last is not None:
            self._numbers = [Text(self._figures(state.last), no_wrap=True, overflow="ellipsis")]
            self._live.update(self._layout())
        if text := run_text.announcement(event):
            self.note(text)

    def _layout(self) -> Group:
        return Group(self._spinner, *self._numbers, self._progress)

    @staticmethod
    def _status(state: RunState) -> str:
        if state.last is None:
            return state.phase
        times = [
            f"{name} {run_text.seconds(state.last[key])}"
            for name in run_text.PHASES
            if state.last.get(key := f"timing_s/{name}") is not None
        ]
        return f"step {state.step}: {', '.join(times)}" if times else state.phase

    @staticmethod
    def _figures(last: Mapping[str, Any]) -> str:
        speed = last.get("images_per_s")
        speeds = [f"{run_text.number(speed)} images/s"] if speed is not None else []
        return "  ".join([*run_text.learning_texts(last), *speeds, f"weights v{last.get('weights/version', '?')}"])

    @staticmethod
    def _left(state: RunState) -> str:
        eta = state.last.get("eta_s") if state.last is not None else None
        return f"ETA {run_text.duration(eta)}" if eta is not None else ""


def make_display(name: str, console: Console, *, plain: bool) -> Display:
    """A bar on a terminal, else lines."""
    return LineDisplay(console) if plain or not console.is_terminal else BarDisplay(console, name)
