"""Answers of reward servers and judges: which are asked for again, after which pause, and how large one may be."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import httpx2
from tenacity import RetryCallState, retry_if_exception_type

SHOWN = 200  # characters of an answer in an error
BUSY = frozenset({408, 425, 429})  # besides 5xx: the same request may succeed later (RFC 9110, RFC 8470, RFC 6585)
LARGEST_ANSWER = 16 * 2**20  # bytes; a larger one would only fill the memory
LONGEST_PAUSE = 120.0  # seconds that a server may ask for


class AskAgain(RuntimeError):
    """An answer after which the request is sent again.

    Attributes:
        pause: seconds that the server asks to wait (`Retry-After`); None if it does not say.
    """

    def __init__(self, text: str, pause: float | None = None) -> None:
        super().__init__(text)
        self.pause = pause


AGAIN = retry_if_exception_type((httpx2.TransportError, AskAgain))


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def is_success(self) -> bool:
        """Whether its status is 2xx."""
        return 200 <= self.status < 300

    @property
    def shown(self) -> str:
        """Its status and beginning, for errors, and where it redirects to."""
        begin = f"status {self.status}: {self.body[: 4 * SHOWN].decode(errors='replace')[:SHOWN]}"
        if not (300 <= self.status < 400 and (target := self.headers.get("location"))):
            return begin
        return f"{begin} (it redirects to {target[:SHOWN]}, and redirects are not followed: write that URL)"

    def check_status(self, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        """Raises `AskAgain` for a status of a server that is busy or failed."""
        if self.status in BUSY or self.status >= 500:
            pause = retry_after(self.headers.get("retry-after"), now)
            asked = "" if pause is None else f" (it asks to wait {pause:g} s)"
            raise AskAgain(f"{self.shown}{asked}", pause)

    def json(self) -> Any:
        """Its JSON. Raises `AskAgain` if it is none: it may be the page of a proxy, or end too early."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError) as error:
            raise AskAgain(f"the response is not JSON: {self.shown}") from error


def retry_after(value: str | None, now: Callable[[], datetime]) -> float | None:
    """PURE: seconds of a header `Retry-After`, which has seconds or a date; None for neither (RFC 9110, 10.2.3)."""
    if value is None:
        return None
    if value.strip().isdecimal():
        return float(value)
    try:
        date = parsedate_to_datetime(value)
    except ValueError:
        return None
    return max(0.0, (date.replace(tzinfo=date.tzinfo or UTC) - now()).total_seconds())


def pause_before(state: RetryCallState, growing: Callable[[RetryCallState], float]) -> float:
    """PURE: seconds before the next attempt: the backoff, or the server's (at most `LONGEST_PAUSE`) if it is longer."""
    error = state.outcome.exception() if state.outcome is not None else None
    asked = error.pause if isinstance(error, AskAgain) else None
    return max(growing(state), min(asked or 0.0, LONGEST_PAUSE))
