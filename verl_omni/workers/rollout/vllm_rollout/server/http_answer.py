"""`AnswerMiddleware`: answers over HTTP have the version of the weights, and status 503 if they were not served."""

import json
from collections.abc import Awaitable, Callable, MutableMapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

VERSION_HEADER = "X-Weights-Version"
RETRY_SECONDS = 5  # short, because the next request waits at the gate too

Message = MutableMapping[str, Any]


@dataclass
class Answer:
    """The engine proxy's record of the answer to one HTTP request.

    Attributes:
        versions: versions of the weights that generated its samples.
        refusal: why it was not served.
    """

    versions: set[int] = field(default_factory=set)
    refusal: str | None = None


current_answer: ContextVar[Answer | None] = ContextVar("current_answer", default=None)


class AnswerMiddleware:
    """ASGI middleware around vLLM's and vLLM-Omni's routes, which turn every error into a status of their own."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(
        self,
        scope: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        """Handle one request. The first part of its answer is held until it has a body: a stream begins earlier."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answer = Answer()
        start: Message | None = None
        refused = False

        async def send_answer(message: Message) -> None:
            nonlocal start, refused
            if message["type"] == "http.response.start":
                start = message
                return
            if start is not None:
                begin = start
                start = None
                if answer.refusal is not None:
                    refused = True
                    for part in _service_unavailable(answer.refusal):
                        await send(part)
                else:
                    await send({**begin, "headers": [*begin.get("headers", ()), *_version_header(answer.versions)]})
            if not refused:
                await send(message)

        token = current_answer.set(answer)
        try:
            await self._app(scope, receive, send_answer)
        finally:
            current_answer.reset(token)


def _version_header(versions: set[int]) -> list[tuple[bytes, bytes]]:
    """None before the first update; several versions if a request was generated in parts, such as one per prompt."""
    text = ",".join(map(str, sorted(versions)))
    return [(VERSION_HEADER.lower().encode(), text.encode())] if text else []


def _service_unavailable(message: str) -> list[Message]:
    error = {"message": message, "type": "Service Unavailable", "param": None, "code": 503}
    body = json.dumps({"error": error}).encode()
    headers = {"content-type": "application/json", "content-length": len(body), "retry-after": RETRY_SECONDS}
    lines = [(name.encode(), str(value).encode()) for name, value in headers.items()]
    return [
        {"type": "http.response.start", "status": 503, "headers": lines},
        {"type": "http.response.body", "body": body},
    ]
