"""Why a trainer ended: from its exit code, its events and the end of its log."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from pathlib import Path

from . import console

# Ray prefixes lines of its workers: `(WorkerDict pid=12) text`, coloured.
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_PREFIX = re.compile(r"^\([A-Za-z_][^()]* pid=\d+[^()]*\)\s?")
_NOISE = re.compile(r"^\s*$|\b(INFO|DEBUG)\b|FutureWarning|DeprecationWarning|^\s*[\^~]+\s*$|it/s\]")
_TRACEBACK = "Traceback (most recent call last)"
_ERROR = re.compile(r"^(\w+\.)*\w*(Error|Exception|Interrupt|Exit|Mismatch|Sample)\b.*")


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


def read_tail(log: Path, start: int, limit: int) -> list[str]:
    """Lines of a log after byte `start`, at most `limit` bytes of them."""
    if not log.exists():
        return []
    with log.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(start, size - limit))
        return file.read().decode("utf-8", "replace").splitlines()


def log_excerpt(lines: Sequence[str], limit: int = 15) -> list[str]:
    """At most `limit` lines: the end of the last traceback if there is one, else the last lines without chatter."""
    clean = [_PREFIX.sub("", _COLOUR.sub("", line)).rstrip() for line in lines]
    starts = [place for place, line in enumerate(clean) if _TRACEBACK in line]
    if starts:
        after = clean[starts[-1] :]
        ends = [place for place, line in enumerate(after) if _ERROR.match(line.strip())]
        trace = [line for line in after[: ends[0] + 1 if ends else limit] if not _NOISE.search(line)]
        return trace if len(trace) <= limit else [trace[0], "  ...", *trace[-(limit - 2) :]]
    return [line for line in clean if not _NOISE.search(line)][-limit:]
