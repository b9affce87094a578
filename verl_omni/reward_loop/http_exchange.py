"""Requests to reward servers and judges: connections that are kept, and one deadline for each whole answer."""

import asyncio
import threading
import weakref
from functools import lru_cache
from typing import Any

import httpx2

from verl_omni.reward_loop.http_answers import LARGEST_ANSWER, SHOWN, Answer

KEPT_SECONDS = 60.0  # how long an idle connection is kept
_CLIENTS: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, httpx2.AsyncClient] = weakref.WeakKeyDictionary()


async def post(url: str, seconds: float, **sent: Any) -> Answer:
    """Post something and read the answer, on a connection of this event loop.

    Args:
        seconds: limit of the whole answer. httpx2 limits each part, also of the headers, and not all of them.
        sent: `json`, `content` or `headers` of httpx2.

    Raises:
        httpx2.HTTPError: there is no answer, or it takes too long. ValueError: it is too large.
    """
    body = bytearray()
    try:
        async with asyncio.timeout(seconds), _client().stream("POST", url, timeout=seconds, **sent) as response:
            async for part in response.aiter_bytes():
                body += part
                if len(body) > LARGEST_ANSWER:
                    raise ValueError(f"the answer is larger than {LARGEST_ANSWER} bytes: {bytes(body[:SHOWN])!r}")
    except TimeoutError as error:
        raise httpx2.ReadTimeout(f"the answer was not complete after {seconds:g} s") from error
    return Answer(response.status_code, response.headers, bytes(body))


def post_and_wait(url: str, seconds: float, **sent: Any) -> Answer:
    """`post` for threads without an event loop, which share the connections of one."""
    return asyncio.run_coroutine_threadsafe(post(url, seconds, **sent), _loop()).result()


async def disconnect() -> None:
    """Close the connections of this event loop."""
    if client := _CLIENTS.pop(asyncio.get_running_loop(), None):
        await client.aclose()


def disconnect_threads() -> None:
    """Close the connections of `post_and_wait`."""
    asyncio.run_coroutine_threadsafe(disconnect(), _loop()).result()


def _client() -> httpx2.AsyncClient:
    """The client of this event loop; a new one for each request would connect each time."""
    loop = asyncio.get_running_loop()
    if loop not in _CLIENTS:
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=KEPT_SECONDS)
        _CLIENTS[loop] = httpx2.AsyncClient(limits=limits)
    return _CLIENTS[loop]


@lru_cache(maxsize=1)
def _loop() -> asyncio.AbstractEventLoop:
    """An event loop in a background thread. It makes requests cancellable; a thread blocked on a socket is not."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="reward-servers", daemon=True).start()
    return loop
