"""`Output`: sends adapter, report and samples of a run elsewhere, in the background after each checkpoint and adapter.

`<url>` gets the files of the run folder under the same names (docs/guides/results.md). From a checkpoint, it gets the
adapter, or all files if all weights are trained. `latest.json`, written last, names the newest checkpoint, or
adapter saved without one, whose files are all there.
"""

import json
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from verl_omni.trainer import report
from verl_omni.trainer.output import hub_destination, inputs
from verl_omni.trainer.output.destinations import Destination, ResultFile, StoreDestination, result_file
from verl_omni.trainer.run import checkpoints
from verl_omni.trainer.run.run_folder import RunFolder, atomic_write
from verl_omni.utils.metrics import exported_metrics as exported
from verl_omni.utils.metrics.metrics_writer import MetricsWriter
from verl_omni.utils.stores import Store, StoreError, StoreRefused

logger = logging.getLogger(__name__)
NOT_SENT = "OutputNotSent"
NOT_WRITTEN = "ReportNotWritten"
LATEST = "latest.json"
TEXTS = (
    "config.yaml",
    "job.yaml",
    "overrides.txt",
    "versions.json",
    "machine.json",
    "metrics.jsonl",
    "progress.jsonl",
    "report.html",
)
CHECK_SECONDS = 60.0  # limit for uploading the first file, before training starts
REFUSED_SECONDS = 10.0  # limit for retrying requests that are refused for a permanent reason
GRACE_SECONDS = 20.0  # limit for remaining uploads when a run is stopped or has failed
PAUSE_FIRST = 1.0
PAUSE_MOST = 30.0


class OutputNotSent(Exception):
    """Results could not be sent within the deadline; they are in the run folder."""


@dataclass(frozen=True, slots=True)
class Sending:
    """Results to send, including the checkpoint of `step` if there is one."""

    step: int | None
    checkpoint: Path | None


def files_of(folder: Path, checkpoint: Path | None) -> list[ResultFile]:
    """The files of a run folder to send, the checkpoint's files first."""
    weights: list[Path] = []
    if checkpoint is not None:
        adapter = checkpoint / "lora"
        weights = sorted(path for path in (adapter if adapter.is_dir() else checkpoint).rglob("*") if path.is_file())
        if not weights:
            raise FileNotFoundError(f"{checkpoint} has been deleted")
    samples = sorted(path for path in (folder / "samples").rglob("*") if path.is_file())
    texts = [folder / name for name in TEXTS if (folder / name).is_file()]
    return [
        *(result_file(path, path.relative_to(folder).as_posix(), may_change=False) for path in (*weights, *samples)),
        *(result_file(path, path.name, may_change=True) for path in texts),
    ]


@dataclass
class Output:
    """Sends results of a run; at most one thread sends.

    Args:
        deadline_s: seconds that the results of one checkpoint may take, with retries.
        report_phase: called with what takes time.
    """

    destination: Destination
    folder: RunFolder
    deadline_s: float
    writer: MetricsWriter = field(default_factory=MetricsWriter)
    pause: float = PAUSE_FIRST
    write_report: Callable[[Path], Any] = report.write
    _waiting: deque[Sending] = field(default_factory=deque, init=False)
    _changed: threading.Condition = field(default_factory=threading.Condition, init=False)
    _busy: bool = field(default=False, init=False)
    _ends_at: float | None = field(default=None, init=False)
    _newest: str | None = field(default=None, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)

    def check(self) -> None:
        """Send the settings, so that a wrong URL or key ends the run before it trains.

        Raises:
            OutputNotSent: they could not be sent.
        """
        path = self.folder.path / "config.yaml"
        first = [result_file(path, path.name, may_change=True)]
        until = time.monotonic() + min(CHECK_SECONDS, self.deadline_s)
        self._repeat(lambda: self.destination.send(first, "settings", lambda: self._ended(until)), until)

    def add(self, step: int, checkpoint: Path) -> None:
        """Send a complete checkpoint's results soon; returns at once."""
        with self._changed:
            self._waiting.append(Sending(step, checkpoint))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="output", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def wait(self, seconds: float | None = None) -> None:
        """Wait until nothing is being sent.

        Args:
            seconds: after these, what is left is given up; None: after `deadline_s` for each of two checkpoints.
        """
        with self._changed:
            if seconds is not None:
                self._ends_at = time.monotonic() + seconds
                self._changed.notify_all()
            self._changed.wait_for(lambda: not self._waiting and not self._busy)

    def finish(self, step: int | None, checkpoint: Path | None, *, complete: bool) -> None:
        """Send the rest of the run's last state, after `wait`.

        Args:
            checkpoint: the newest one.
            complete: the run has ended as it should; otherwise little time is left, and a failure is a warning.

        Raises:
            OutputNotSent: the results of a complete run could not be sent.
        """
        if complete:
            self._send(Sending(step, checkpoint), time.monotonic() + self.deadline_s)
        else:
            self._warn(Sending(step, checkpoint), time.monotonic() + min(GRACE_SECONDS, self.deadline_s))

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._waiting))
                sending = self._waiting.popleft()
                self._busy = True
            sent = False
            try:
                self._write_report()
                sent = self._warn(sending, time.monotonic() + self.deadline_s)
            except Exception:  # without this thread, the end of the run would be waited for without end
                logger.exception("results of a checkpoint were not sent")
            finally:
                with self._changed:
                    while not sent and len(self._waiting) > 1:
                        self._waiting.popleft()  # a store that is down must not hold up the end of the run for each
                    self._busy = False
                    self._changed.notify_all()

    def _write_report(self) -> None:
        """Write the report; a failure is a warning, because the adapter matters more."""
        try:
            self.write_report(self.folder.path)
        except (OSError, ValueError) as error:
            message = f"report.html was not written: {error}"
            self.folder.event("warning", reason=NOT_WRITTEN, message=message)

    def _warn(self, sending: Sending, until: float) -> bool:
        """Send; a failure is a warning. Returns whether it was sent."""
        try:
            self._send(sending, until)
        except (OutputNotSent, OSError) as error:
            self.folder.event("warning", reason=NOT_SENT, message=str(error), step=sending.step)
            return False
        return True

    def _send(self, sending: Sending, until: float) -> None:
        self._repeat(lambda: self._send_once(sending, lambda: self._ended(until)), until)
        if sending.step is not None:
            self.writer.set(exported.OUTPUT_STEP, sending.step)
        self.folder.event("output", step=sending.step, url=self.destination.url)

    def _send_once(self, sending: Sending, ended: Callable[[], bool]) -> None:
        files = files_of(self.folder.path, sending.checkpoint)
        if sending.checkpoint is not None:
            self._newest = sending.checkpoint.relative_to(self.folder.path).as_posix()
        text = json.dumps({"step": sending.step, "checkpoint": self._newest}, indent=2) + "\n"
        latest = self.folder.path / f".{LATEST}"
        atomic_write(latest, text)
        title = "report" if sending.step is None else f"results of step {sending.step}"
        self.destination.send([*files, result_file(latest, LATEST, may_change=True)], title, ended)

    def _repeat(self, act: Callable[[], None], until: float) -> None:
        """Call `act` until it succeeds.

        Raises:
            OutputNotSent: it did not before `until`, or was refused for `REFUSED_SECONDS`.
        """
        pause = self.pause
        while True:
            try:
                return act()
            except StoreError as error:
                self.writer.add(exported.OUTPUT_FAILURES, 1)
                if isinstance(error, StoreRefused):
                    until = min(until, time.monotonic() + REFUSED_SECONDS)
                if self._pause(pause, until):
                    raise OutputNotSent(
                        f"results were not sent to {self.destination.url}: {error}; they are in {self.folder.path}"
                    ) from error
            pause = min(2 * pause, PAUSE_MOST)

    def _pause(self, seconds: float, until: float) -> bool:
        """Wait, at most until time is up. Returns whether it is."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended(until), max(0.0, min(seconds, until - time.monotonic())))
            return self._ended(until)

    def _ended(self, until: float) -> bool:
        return time.monotonic() >= (until if self._ends_at is None else min(until, self._ends_at))


class Results:
    """Uploads of a run's results; does nothing if no destination is set."""

    def __init__(self) -> None:
        self._output: Output | None = None

    def open(self, config: DictConfig, folder: RunFolder) -> None:
        """Begin; a first file has then been sent.

        Raises:
            OutputNotSent: it could not be sent. ValueError: nothing can be sent to such a URL.
        """
        if config.trainer.output.url is not None:
            output = Output(_open(config, folder.path), folder, config.trainer.output.deadline_s)
            output.check()
            self._output = output

    def observe(self, event: Mapping[str, Any]) -> None:
        """Send the results of a checkpoint, or of an adapter, when the event of its completion comes."""
        if self._output is not None and event["event"] in ("checkpoint", "adapter"):
            self._output.add(event["step"], Path(event["path"]))

    def wait(self, *, complete: bool) -> None:
        """Wait until nothing is being sent; only shortly for a run that was stopped or has failed."""
        if self._output is not None:
            self._output.wait(None if complete else GRACE_SECONDS)

    def finish(self, checkpoint: Path | None, *, complete: bool) -> None:
        """Send the last results; raises as `Output.finish`."""
        if self._output is not None:
            step = None if checkpoint is None else checkpoints.step_of(checkpoint)
            self._output.finish(step, checkpoint, complete=complete)


def _open(config: DictConfig, folder: Path) -> Destination:
    url: str = config.trainer.output.url
    if url.startswith(hub_destination.PREFIX):
        return hub_destination.open_repository(config, folder, os.environ)
    return StoreDestination(Store(url, inputs.access(config)))
