"""Progress reports to the operator: posts the events of `progress.jsonl` over HTTP as they occur.

The operator sets three variables in its pods: `DIFFUSIONRL_REPORT_URL`, `DIFFUSIONRL_REPORT_TOKEN_FILE` (the kubelet
renews the token, so it is read for each post) and `DIFFUSIONRL_ATTEMPT`. A run without them posts nothing.
Training never waits for a post and never fails because of one.

Events arrive in order. One that the operator does not accept now, e.g. while it starts or while another replica of it
takes over, is posted again until it is accepted, malformed, or the oldest of too many.
"""

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import httpx2

logger = logging.getLogger(__name__)
HEARTBEAT_SECONDS = 20.0  # after several missing ones, the operator reports the job as stalled
POST_SECONDS = 10.0
QUEUE_SIZE = 256  # events kept while the operator accepts none
# between posts of one event; the operator's Retry-After can make it longer
PAUSE_FIRST = 0.5
PAUSE_MOST = 15.0
RETRY_AFTER_MOST = 60.0
LAST_PAUSE = 1.0
SUPERSEDED = frozenset({"step", "phase", "heartbeat"})  # a later event of that name says all that matters
SHOWN = 200  # characters of an answer that is not the operator's
NEVER_ACCEPTED = frozenset({400, 413})  # the answer to the same event is always the same


@dataclass
class OperatorReporter:
    """Posts events from a background thread.

    Args:
        url: the operator's `/v1/reports`.
        token_file: file with the bearer token.
        attempt: number of the attempt, from 1.
        pause: seconds before an event is posted again for the first time.
    """

    url: str
    token_file: Path
    attempt: int
    transport: httpx2.BaseTransport | None = None
    pause: float = PAUSE_FIRST
    _waiting: deque[dict[str, Any]] = field(default_factory=deque, init=False)
    _changed: threading.Condition = field(default_factory=threading.Condition, init=False)
    _ends_at: float | None = field(default=None, init=False)
    _checkpoint: threading.Event = field(default_factory=threading.Event, init=False)
    _notes: dict[str, int | Mapping[str, int]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._run, name="reports", daemon=True)
        self._thread.start()

    def post(self, event: Mapping[str, Any]) -> None:
        """Queue an event; returns at once."""
        with self._changed:
            self._waiting.append({"attempt": self.attempt, **event})
            while len(self._waiting) > QUEUE_SIZE:
                self._drop_one()
            self._changed.notify()

    def note(self, name: str, value: int | Mapping[str, int]) -> None:
        """Add a value to the next event; if there are several, the largest number or the last mapping is sent."""
        with self._changed:
            before = self._notes.get(name)
            self._notes[name] = max(value, before) if isinstance(value, int) and isinstance(before, int) else value

    def checkpoint_wanted(self) -> bool:
        """Whether the operator has requested a checkpoint since the last call."""
        if not self._checkpoint.is_set():
            return False
        self._checkpoint.clear()  # not unless it was set: it may be set meanwhile
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Post the queued events, within the timeout of one post."""
        with self._changed:
            self._ends_at = time.monotonic() + POST_SECONDS
            self._changed.notify()
        self._thread.join(POST_SECONDS)

    def _drop_one(self) -> None:
        """Drop the oldest event that a later one supersedes, else the oldest. The first may be in flight."""
        for index in range(1, len(self._waiting) - 1):
            if self._waiting[index]["event"] in SUPERSEDED:
                del self._waiting[index]
                return
        del self._waiting[1]

    def _run(self) -> None:
        reached = True
        with httpx2.Client(timeout=POST_SECONDS, transport=self.transport) as client:
            while (event := self._next()) is not None:
                problem = self._deliver(client, event, reached)
                reached = problem is None

    def _next(self) -> dict[str, Any] | None:
        """The oldest event, which stays in the queue; a heartbeat if there is none for long; None at the end."""
        with self._changed:
            if not self._waiting and self._ends_at is None:
                self._changed.wait(HEARTBEAT_SECONDS)
            if self._waiting:
                return self._waiting[0]
            return {"attempt": self.attempt, "event": "heartbeat"} if self._ends_at is None else None

    def _deliver(self, client: httpx2.Client, event: dict[str, Any], reached: bool) -> str | None:
        """Post an event until it is accepted or given up. Returns the last error, if it was not accepted."""
        pause = self.pause
        while True:
            problem, after = self._send(client, event)
            if problem and reached:  # once, not at every try while the operator is unreachable
                reached = False
                logger.warning(
                    "progress could not be reported to the operator at %s; training continues: %s", self.url, problem
                )
            with self._changed:
                given_up = problem is None or after is None or not self._is_waiting(event)
                if given_up or not self._pause(max(pause, after or 0.0)):
                    if self._is_waiting(event):
                        self._waiting.popleft()
                    return problem
            pause = min(2 * pause, PAUSE_MOST)

    def _is_waiting(self, event: dict[str, Any]) -> bool:
        """False for a heartbeat, which is posted once."""
        return bool(self._waiting) and self._waiting[0] is event

    def _pause(self, seconds: float) -> bool:
        """Wait, but only briefly at the end of the run. Returns whether to continue."""
        if not self._changed.wait_for(lambda: self._ends_at is not None, seconds):
            return True
        assert self._ends_at is not None
        left = self._ends_at - time.monotonic()
        self._changed.wait_for(lambda: False, min(seconds, left, LAST_PAUSE))
        return left > 0

    def _send(self, client: httpx2.Client, event: dict[str, Any]) -> tuple[str | None, float | None]:
        """Post an event once. Returns the error, if any, and the seconds to wait; None: it is never accepted."""
        with self._changed:
            notes = dict(self._notes)
        try:
            token = self.token_file.read_text(encoding="utf-8").strip()
            answer = client.post(self.url, json={**event, **notes}, headers={"Authorization": f"Bearer {token}"})
            answer.raise_for_status()
            reply = answer.json()
            if not isinstance(reply, dict):  # another server answered; an exception would end this thread
                return f"the answer is no JSON object: {answer.text[:SHOWN]}", 0.0
            with self._changed:
                # One that has grown meanwhile is for the next event.
                self._notes = {name: value for name, value in self._notes.items() if value != notes.get(name)}
            if reply.get("checkpoint"):
                self._checkpoint.set()
        except httpx2.HTTPStatusError as error:
            problem = f"{type(error).__name__}: {error}"
            if error.response.status_code in NEVER_ACCEPTED:
                return problem, None
            after = error.response.headers.get("Retry-After", "")
            return problem, min(float(after), RETRY_AFTER_MOST) if after.isdecimal() else 0.0
        except (OSError, httpx2.HTTPError, ValueError) as error:
            return f"{type(error).__name__}: {error}", 0.0
        return None, None


class NullReporter:
    """Reporter of a run outside the operator: it posts nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def post(self, event: Mapping[str, Any]) -> None:
        """Do nothing."""

    def note(self, name: str, value: int | Mapping[str, int]) -> None:
        """Do nothing."""

    def checkpoint_wanted(self) -> bool:
        """Return False: no operator can request one."""
        return False


def from_environment() -> OperatorReporter | NullReporter:
    """The reporter that the environment variables configure."""
    url = os.environ.get("DIFFUSIONRL_REPORT_URL")
    token = os.environ.get("DIFFUSIONRL_REPORT_TOKEN_FILE")
    if not url or not token:
        return NullReporter()
    return OperatorReporter(url, Path(token), int(os.environ.get("DIFFUSIONRL_ATTEMPT", "1")))
