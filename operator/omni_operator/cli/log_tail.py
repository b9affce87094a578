"""PURE: the end of a trainer's log -> the few lines that say why it ended."""

from __future__ import annotations

import re
from collections.abc import Sequence

# Ray prefixes lines of its workers: `(WorkerDict pid=12) text`, coloured.
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_PREFIX = re.compile(r"^\([A-Za-z_][^()]* pid=\d+[^()]*\)\s?")
_NOISE = re.compile(r"^\s*$|\b(INFO|DEBUG)\b|FutureWarning|DeprecationWarning|^\s*[\^~]+\s*$|it/s\]")
_TRACEBACK = "Traceback (most recent call last)"
_ERROR = re.compile(r"^(\w+\.)*\w*(Error|Exception|Interrupt|Exit|Mismatch|Sample)\b.*")


def meaningful(lines: Sequence[str], limit: int = 15) -> list[str]:
    """At most `limit` lines: the end of the last traceback if there is one, else the last lines without chatter."""
    clean = [_PREFIX.sub("", _COLOUR.sub("", line)).rstrip() for line in lines]
    starts = [place for place, line in enumerate(clean) if _TRACEBACK in line]
    if starts:
        after = clean[starts[-1] :]
        ends = [place for place, line in enumerate(after) if _ERROR.match(line.strip())]
        trace = [line for line in after[: ends[0] + 1 if ends else limit] if not _NOISE.search(line)]
        return trace if len(trace) <= limit else [trace[0], "  ...", *trace[-(limit - 2) :]]
    return [line for line in clean if not _NOISE.search(line)][-limit:]
