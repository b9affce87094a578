"""Tell the operator how the run goes: the events of `progress.jsonl`, posted as they come.

What a pod of the operator has in its environment: `DIFFUSIONRL_REPORT_URL`, `DIFFUSIONRL_REPORT_TOKEN_FILE` (a token
that the kubelet renews, so it is read for each post) and `DIFFUSIONRL_ATTEMPT`. A run without them reports to nobody.
The training never waits for a report and never fails for one.
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
HEARTBEAT_SECONDS = 20.0  # the operator calls a job stalled after several of these
POST_SECONDS = 10.0
KEPT = 256  # events that wait for an operator that is away; the oldest are dropped


@dataclass
class OperatorReporter:
    """Posts events from a thread of its own.

    Args:
        url: where; `/v1/reports` of the operator.
        token_file: holds the bearer token.
        attempt: number of the attempt, from 1.
    """

    url: str
    token_file: Path
    attempt: int
    transport: httpx.BaseTransport | None = None
    _waiting: queue.Queue[dict[str, Any] | None] = field(default_factory=lambda: queue.Queue(KEPT), init=False)
    _checkpoint: threading.Event = field(default_factory=threading.Event, init=False)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._run, name="reports", daemon=True)
        self._thread.start()

    def tell(self, event: Mapping[str, Any]) -> None:
        """Have an event posted; returns at once."""
        self._put({"attempt": self.attempt, **event})

    def checkpoint_wanted(self) -> bool:
        """Whether the operator has asked for a checkpoint since this was last asked."""
        wanted = self._checkpoint.is_set()
        self._checkpoint.clear()
        return wanted

    def __enter__(self) -> OperatorReporter:
        return self

    def __exit__(self, *error: object) -> None:
        """Post what waits, within the time of one post."""
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
                problem = self._post(client, event)
                if problem and reached:  # once, not at every step of an operator's absence
                    logger.warning("the operator could not be told of this run, which goes on: %s", problem)
                reached = problem is None

    def _post(self, client: httpx.Client, event: dict[str, Any]) -> str | None:
        """Returns what went wrong, if anything did."""
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

    def tell(self, event: Mapping[str, Any]) -> None:
        """Do nothing."""

    def checkpoint_wanted(self) -> bool:
        """Return False: no operator can request one."""
        return False


def from_environment() -> OperatorReporter | NullReporter:
    """The reporter that the environment describes."""
    url, token = os.environ.get("DIFFUSIONRL_REPORT_URL"), os.environ.get("DIFFUSIONRL_REPORT_TOKEN_FILE")
    if not url or not token:
        return NullReporter()
    return OperatorReporter(url, Path(token), int(os.environ.get("DIFFUSIONRL_ATTEMPT", "1")))
