"""`RequestGathering`: requests that the rows of a batch make at the same time, so that they are sent together."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

# Requests are sent when every row of the batch waits for an answer, or when no other one came for so long, because rows
# that have other work to do, such as a loop that calls tools, should not delay the others.
QUIET_SECONDS = 0.05


@dataclass(slots=True)
class GatheredRequest:
    """A request, and the future of its answer."""

    request_id: str
    arguments: Mapping[str, Any]
    answer: asyncio.Future[Any] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def settle(self, answer: Any) -> None:
        """Give the caller its answer, or raise it there if it is an exception."""
        if self.answer.done():
            return  # the caller was cancelled
        if isinstance(answer, BaseException):
            self.answer.set_exception(answer)
        else:
            self.answer.set_result(answer)


class RequestGathering:
    """Gathers requests and sends them together.

    Args:
        send: sends requests, and settles all of them.
    """

    def __init__(self, send: Callable[[list[GatheredRequest]], Awaitable[None]]) -> None:
        self._send = send
        self._rows = 0  # rows that may still ask for a sample
        self._asking = 0  # requests without an answer
        self._gathered: list[GatheredRequest] = []
        self._quiet: asyncio.TimerHandle | None = None
        self._sending: set[asyncio.Future[None]] = set()

    @contextmanager
    def row(self) -> Iterator[None]:
        """Announce a row, whose requests are sent together with other rows' requests."""
        self._rows += 1
        try:
            yield
        finally:
            self._rows -= 1
            self._check_soon()

    async def ask(self, request_id: str, arguments: Mapping[str, Any]) -> Any:
        """The answer to a request, which is sent with others. Raises what the request is settled with."""
        request = GatheredRequest(request_id, arguments)
        self._gathered.append(request)
        self._asking += 1
        self._check_soon()
        if self._quiet is not None:
            self._quiet.cancel()
        self._quiet = asyncio.get_running_loop().call_later(QUIET_SECONDS, self._send_all)
        try:
            return await request.answer
        finally:
            self._asking -= 1

    def _check_soon(self) -> None:
        if self._gathered:
            # In the next turn of the loop, when all tasks of this turn have asked.
            asyncio.get_running_loop().call_soon(self._send_if_complete)

    def _send_if_complete(self) -> None:
        if self._asking >= self._rows:
            self._send_all()

    def _send_all(self) -> None:
        requests = [request for request in self._gathered if not request.answer.done()]
        self._gathered = []
        if self._quiet is not None:
            self._quiet.cancel()
            self._quiet = None
        if requests:
            sending = asyncio.ensure_future(self._send(requests))
            self._sending.add(sending)
            sending.add_done_callback(self._sending.discard)
