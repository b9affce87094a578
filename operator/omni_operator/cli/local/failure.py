"""Why a run failed: from the trainer's exit code, its error event and the end of its log."""

import re
import signal
from collections.abc import Sequence
from pathlib import Path

from omni_operator.cli import console

# Ray prefixes the lines of its workers: `(WorkerDict pid=12) text`, in color.
_COLOR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_PREFIX = re.compile(r"^\([A-Za-z_][^()]* pid=\d+[^()]*\)\s?")
_NOISE = re.compile(r"^\s*$|\b(INFO|DEBUG)\b|FutureWarning|DeprecationWarning|^\s*[\^~]+\s*$|it/s\]")
_TRACEBACK = "Traceback (most recent call last)"
_ERROR = re.compile(r"^(\w+\.)*\w*(Error|Exception|Interrupt|Exit|Mismatch|Sample)\b.*")


def was_stopped(code: int, stop_requests: int) -> bool:
    """PURE: whether the user stopped the run, rather than a failure."""
    by_request = code in (console.INTERRUPTED, -signal.SIGINT, -signal.SIGTERM, -signal.SIGHUP)
    return stop_requests > 1 or (stop_requests == 1 and by_request)


def explain(
    code: int, reported: str | None, log: Sequence[str], log_path: str, *, out_of_memory: bool, disk_full: bool
) -> list[str]:
    """PURE: the lines to show for a failed run. The last one is the cause.

    Args:
        code: exit code of the trainer, negative for a signal.
        reported: the error that the trainer reported. Without one, an excerpt of the log is shown.
        log: lines of the log of this start.
        disk_full: whether the disk of the run folder has no space left, so that log and error may be missing.
    """
    excerpt = [] if reported else log_excerpt(log)
    error = reported or _last_error(excerpt) or _refusal(code, excerpt)
    headline, *details = (error or "").strip().splitlines() or [""]
    if excerpt and excerpt[-1].strip() == error:
        excerpt.pop()  # the last line of the output repeats it
    lines = [f"  | {line}" for line in (details or excerpt)]
    return [
        *lines,
        f"log: {log_path}",
        f"failed: {_cause(code, headline, out_of_memory=out_of_memory, disk_full=disk_full)}",
    ]


def _cause(code: int, error: str, *, out_of_memory: bool, disk_full: bool) -> str:
    if out_of_memory:
        killed = "out of memory: the kernel killed a process of the run"
        return f"{killed}; {error}" if error else killed
    if code == -signal.SIGKILL:
        killed = "the trainer was killed (SIGKILL), usually because the machine ran out of memory"
        return f"{killed}; {error}" if error else killed
    if error:
        return error
    if disk_full:
        return "the disk of the run folder is full: free some space, and run the same command to resume"
    if code < 0:
        return f"the trainer was ended by {signal.Signals(-code).name}"
    return f"the trainer exited with code {code}; the log has no error"


def _last_error(lines: Sequence[str]) -> str | None:
    """The exception at the end of a traceback."""
    if not any(_TRACEBACK in line for line in lines):
        return None
    return next((line.strip() for line in reversed(lines) if _ERROR.match(line.strip())), None)


def _refusal(code: int, lines: Sequence[str]) -> str | None:
    """What a trainer that refuses its settings prints last. It does so before it can report an error."""
    return lines[-1].strip() if code == console.USAGE and lines else None


def read_tail(log: Path, start: int, limit: int) -> list[str]:
    """Lines of a log after byte `start`, at most the last `limit` bytes."""
    if not log.exists():
        return []
    with log.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(start, size - limit))
        return file.read().decode("utf-8", "replace").splitlines()


def log_excerpt(lines: Sequence[str], limit: int = 15) -> list[str]:
    """At most `limit` lines: the end of the last traceback if there is one, else the last lines of interest."""
    clean = [_PREFIX.sub("", _COLOR.sub("", line)).rstrip() for line in lines]
    starts = [index for index, line in enumerate(clean) if _TRACEBACK in line]
    if starts:
        after = clean[starts[-1] :]
        ends = [index for index, line in enumerate(after) if _ERROR.match(line.strip())]
        trace = [line for line in after[: ends[0] + 1 if ends else limit] if not _NOISE.search(line)]
        return trace if len(trace) <= limit else [trace[0], "  ...", *trace[-(limit - 2) :]]
    return [line for line in clean if not _NOISE.search(line)][-limit:]
