"""A run of the suite: lanes of processes, their logs, and a report of each stage as it ends."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from .preloaded import Fork, Preloaded
from .stages import Lane, Stage
from .timings import StageTime

HEARTBEAT_S = 60.0
SHOWN = 400  # last lines of the log of a stage that failed
ERRORS_SHOWN = 6
LINE_SHOWN = 300
ENDS_WITHIN_S = 20.0
CLOSING = re.compile(r"\b(passed|skipped)\b.* in \d")  # pytest's last line


class Runner:
    """Runs lanes side by side. A lane of tests that has ended, or that would wait, takes over stages of another.

    Args:
        folder: where logs, JUnit reports and durations go.
        say: prints a line.
        preloaded: forks the stages that say so; None: they are started as all others.
    """

    def __init__(self, folder: Path, say: Callable[[str], None], preloaded: Preloaded | None = None) -> None:
        self._folder = folder
        self._say = say
        self._preloaded = preloaded
        self._changed = threading.Condition()
        self._ended: dict[str, bool] = {}
        self._running: dict[str, float] = {}
        self._waiting: list[deque[Stage]] = []
        self._processes: list[subprocess.Popen[bytes] | Fork] = []
        self._begun = time.monotonic()
        self._stopping = False

    def run(self, lanes: Sequence[Lane]) -> list[str]:
        """Names of the stages that failed, or did not run because another one did."""
        self._folder.mkdir(parents=True, exist_ok=True)
        stages = [stage for lane in lanes for stage in lane]
        others = {stage.name for stage in stages if not stage.last}
        self._waiting = [deque(lane) for lane in lanes]
        threads = [threading.Thread(target=self._run_lane, args=(lane, others), daemon=True) for lane in self._waiting]
        try:
            for thread in threads:
                thread.start()
            self._wait(threads)
        finally:
            self._stop()
        return [stage.name for stage in stages if not self._ended.get(stage.name, False)]

    def _wait(self, threads: Sequence[threading.Thread]) -> None:
        printed_at = time.monotonic()
        while any(thread.is_alive() for thread in threads):
            threads[0].join(0.2) if threads[0].is_alive() else time.sleep(0.2)
            if time.monotonic() - printed_at > HEARTBEAT_S:
                printed_at = time.monotonic()
                with self._changed:
                    running = dict(self._running)
                for name, begun in running.items():
                    self._print(f"running for {printed_at - begun:.0f} s: {name}  {self._last_line(name)}")

    def _run_lane(self, own: deque[Stage], others: set[str]) -> None:
        builds = all(stage.niceness for stage in own)
        while True:
            with self._changed:
                if not builds:
                    self._changed.wait_for(lambda: self._stopping or self._has_next(own))
                if not own:
                    return
                stage = own.popleft()
                awaited = (others if stage.last else set()) | set(stage.after)
                self._changed.wait_for(partial(self._may_start, awaited))
                missing = [name for name in stage.after if not self._ended.get(name, False)]
                if self._stopping:
                    return
            if missing:
                self._print(f"NOT RUN: {stage.name}, because this failed: {', '.join(missing)}")
                self._end(stage, False)
            else:
                self._run_stage(stage)

    def _has_next(self, own: deque[Stage]) -> bool:
        """Whether the lane has a stage, its own or one that it takes over, or no stage is left that it could take."""
        if not (own and self._starts_at_once(own[0])):
            self._take_over(own)
        return bool(own) or not any(self._is_shared(stage) for lane in self._waiting for stage in lane)

    def _take_over(self, own: deque[Stage]) -> None:
        """Move the last stage that can start at once from the longest other lane of tests, if there is one."""
        for lane in sorted(self._waiting, key=len, reverse=True):
            for stage in reversed(lane):
                if self._is_shared(stage) and self._starts_at_once(stage):
                    lane.remove(stage)
                    own.appendleft(stage)
                    return

    @staticmethod
    def _is_shared(stage: Stage) -> bool:
        return not stage.niceness and not stage.last

    def _starts_at_once(self, stage: Stage) -> bool:
        return not stage.last and set(stage.after) <= self._ended.keys()

    def _may_start(self, awaited: set[str]) -> bool:
        return self._stopping or awaited <= self._ended.keys()

    def _run_stage(self, stage: Stage) -> None:
        """Run a stage to its end. Pytest counts as failed without its closing line: a test may have replaced it."""
        begun = time.monotonic()
        with self._changed:
            if self._stopping:
                return
            self._running[stage.name] = begun
            process = self._start(stage)
            self._processes.append(process)
        code = process.wait()
        succeeded = code == 0 and (not stage.is_pytest or self._has_closing_line(stage))
        self._report(stage, time.monotonic() - begun, succeeded)
        self._end(stage, succeeded)

    def _start(self, stage: Stage) -> subprocess.Popen[bytes] | Fork:
        if stage.preloaded and self._preloaded is not None:
            return self._preloaded.run_pytest([*stage.command[2:], self._junit(stage)], self._log(stage))
        with self._log(stage).open("wb") as log:
            process = subprocess.Popen(
                self._command(stage),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": ".", **dict(stage.environment)},
            )
        if stage.niceness:
            # Linux shares the processors out between sessions, for which the nice values of their processes do not
            # count (sched(7), "The autogroup feature").
            with suppress(OSError):  # a kernel without this feature
                Path(f"/proc/{process.pid}/autogroup").write_text(str(stage.niceness))
        return process

    def _junit(self, stage: Stage) -> str:
        return f"--junitxml={self._folder / stage.file}.xml"

    def _command(self, stage: Stage) -> list[str]:
        nice = ["nice", "-n", str(stage.niceness)] if stage.niceness else []
        if stage.is_make:
            return [*nice, *stage.command]
        report = [self._junit(stage)] if stage.is_pytest else []
        return [*nice, sys.executable, *stage.command, *report]

    def _report(self, stage: Stage, seconds: float, succeeded: bool) -> None:
        if self._stopping:
            return
        lines = self._log_lines(stage)
        last = lines[-1].strip("= ") if lines and stage.is_pytest else ""
        took = StageTime(stage.name, round(seconds, 1), succeeded, last)
        (self._folder / f"{stage.file}.json").write_text(took.as_json(), encoding="utf-8")
        shown = [line for line in lines if line.startswith("SKIPPED")] if succeeded else lines[-SHOWN:]
        word = "passed" if succeeded else "FAILED"
        head = f"{word} in {seconds:.0f} s: {stage.name}  {took.said}"
        self._print("\n".join([head, *(f"    {line}" for line in shown)]))

    def failure_summary(self, name: str) -> str:
        """The failed tests of a stage and their errors, or its last line: what a reader of a cut log needs last."""
        lines = self._log_lines(Stage(name, ()))
        errors = [line for line in lines if line.startswith("E  ")][-ERRORS_SHOWN:]
        failed = [line for line in lines if line.startswith(("FAILED ", "ERROR "))] or lines[-1:]
        return "\n".join(line[:LINE_SHOWN] for line in [*errors, *failed])

    def _end(self, stage: Stage, succeeded: bool) -> None:
        with self._changed:
            self._running.pop(stage.name, None)
            self._ended[stage.name] = succeeded
            self._changed.notify_all()

    def _stop(self) -> None:
        """End the stages that still run, each with its whole process group.

        SIGINT, because by it pytest ends its fixtures: a cluster leaves no namespaces and mounts.
        """
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
            running = [process for process in self._processes if process.poll() is None]
        if self._preloaded is not None:
            self._preloaded.interrupt()
        for process in running:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGINT)
        deadline = time.monotonic() + ENDS_WITHIN_S
        for process in running:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
        for process in running:
            # The group may live longer than its first process.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if self._preloaded is not None:
            self._preloaded.close()

    def _log(self, stage: Stage) -> Path:
        return self._folder / f"{stage.file}.log"

    def _has_closing_line(self, stage: Stage) -> bool:
        # Libraries may print something when the interpreter exits, after pytest.
        return any(CLOSING.search(line) for line in self._log_lines(stage)[-20:])

    def _log_lines(self, stage: Stage) -> list[str]:
        path = self._log(stage)
        return path.read_text(encoding="utf-8", errors="replace").rstrip().splitlines() if path.exists() else []

    def _last_line(self, name: str) -> str:
        lines = self._log_lines(Stage(name, ()))
        return lines[-1][-100:] if lines else ""

    def _print(self, text: str) -> None:
        self._say(f"{time.monotonic() - self._begun:6.0f} s  {text}")
