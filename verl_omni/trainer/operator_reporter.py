"""Progress reports to the operator: posts the events of `progress.jsonl` over HTTP as they occur.

The operator sets three variables in its pods: `DIFFUSIONRL_REPORT_URL`, `DIFFUSIONRL_REPORT_TOKEN_FILE` (the kubelet
renews the token, so it is read for each post) and `DIFFUSIONRL_ATTEMPT`. A run without them posts nothing.
Training never waits for a post and never fails because of one.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

logger = logging.getLogger(__name__)
HEARTBEAT_SECONDS = 20.0  # after several missing ones, the operator reports the job as stalled
POST_SECONDS = 10.0
QUEUE_SIZE = 256  # events kept while the operator is unreachable; the oldest are dropped


@dataclass
class OperatorReporter:
    """Posts events from a background thread.

    Args:
        url: the operator's `/v1/reports`.
        token_file: file with the bearer token.
        attempt: number of the attempt, from 1.
    """

    url: str
    token_file: Path
    attempt: int
    transport: httpx.BaseTransport | None = None
    _waiting: queue.Queue[dict[str, Any] | None] = field(default_factory=lambda: queue.Queue(QUEUE_SIZE), init=False)
    _checkpoint: threading.Event = field(default_factory=threading.Event, init=False)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._run, name="reports", daemon=True)
        self._thread.start()

    def post(self, event: Mapping[str, Any]) -> None:
        """Queue an event; returns at once."""
        self._put({"attempt": self.attempt, **event})

    def checkpoint_wanted(self) -> bool:
        """Whether the operator has requested a checkpoint since the last call."""
        wanted = self._checkpoint.is_set()
        self._checkpoint.clear()
        return wanted

    def __enter__(self) -> OperatorReporter:
        return self

    def __exit__(self, *error: object) -> None:
        """Post the queued events, within the timeout of one post."""
        self._put(None)
        self._thread.join(POST_SECONDS)

    def _put(self, item: dict[str, Any] | None) -> None:
        while True:
            try:
                self._waiting.put_nowait(item)
                return
            except queue.Full:
                self._waiting.get_nowait()

    def _run(self) -> None:
        reached = True
        with httpx.Client(timeout=POST_SECONDS, transport=self.transport) as client:
            while True:
                try:
                    event = self._waiting.get(timeout=HEARTBEAT_SECONDS)
                except queue.Empty:
                    event = {"attempt": self.attempt, "event": "heartbeat"}
                if event is None:
                    return
                problem = self._send(client, event)
                if problem and reached:  # once, not at every step while the operator is unreachable
                    logger.warning(
                        "progress could not be reported to the operator at %s; training continues: %s",
                        self.url,
                        problem,
                    )
                reached = problem is None

    def _send(self, client: httpx.Client, event: dict[str, Any]) -> str | None:
        """Post an event. Returns the error, if any."""
        try:
            token = self.token_file.read_text(encoding="utf-8").strip()
            answer = client.post(self.url, json=event, headers={"Authorization": f"Bearer {token}"})
            answer.raise_for_status()
            if answer.json().get("checkpoint"):
                self._checkpoint.set()
        except (OSError, httpx.HTTPError, ValueError) as error:
            return f"{type(error).__name__}: {error}"
        return None


class NullReporter:
    """Reporter of a run outside the operator: it posts nothing."""

    def __enter__(self) -> NullReporter:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def post(self, event: Mapping[str, Any]) -> None:
        """Do nothing."""

    def checkpoint_wanted(self) -> bool:
        """Return False: no operator can request one."""
        return False


def from_environment() -> OperatorReporter | NullReporter:
    """The reporter that the environment variables configure."""
    url, token = os.environ.get("DIFFUSIONRL_REPORT_URL"), os.environ.get("DIFFUSIONRL_REPORT_TOKEN_FILE")
    if not url or not token:
        return NullReporter()
    return OperatorReporter(url, Path(token), int(os.environ.get("DIFFUSIONRL_ATTEMPT", "1")))
