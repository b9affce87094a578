"""Client of watches: lists that the API server streams, lists in pages, and changes."""

import asyncio
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import aiohttp

from omni_operator.cluster.authenticated_client import AuthenticatedClient
from omni_operator.cluster.client import Meter, parse_json
from omni_operator.cluster.credentials import Credentials, Loaded
from omni_operator.cluster.errors import Unavailable, error_of
from omni_operator.cluster.kinds import Body, Kind
from omni_operator.cluster.nested_json import load_json

# The API server sends a bookmark about once a minute, so a connection that is silent for longer does not work.
SILENCE_SECONDS = 70.0
CONNECT_SECONDS = 10.0
WATCH_SECONDS = 300, 600  # after which the API server ends a watch
PAGE = 250  # objects; they are in memory with their managedFields
# Limit for a page with several objects: a job may have 1.5 MB, so a full page might not fit in memory.
PAGE_BYTES = 16 * 1024**2
PAGE_TRIES = 6
PAGE_PAUSE = 0.2


class WatchClient(AuthenticatedClient):
    """Watches over HTTP, one connection each. Use as an async context manager."""

    def __init__(self, credentials: Credentials, meter: Meter, *, version: str) -> None:
        super().__init__(credentials, version=version, connections=0)
        self._meter = meter

    async def changes(
        self, kind: Kind, namespace: str | None, selector: str, since: str | None
    ) -> AsyncGenerator[tuple[str, Body]]:
        """Type and object of each change after the version `since`, until the API server ends the watch.

        Without a version, all objects come first, as `ADDED`, and then a bookmark (`is_end_of_list`).

        Raises:
            Expired: the version is too old.
            ClusterError: the request failed, or the connection was silent or broke.
        """
        parameters = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "labelSelector": selector,
            "timeoutSeconds": str(random.randint(*WATCH_SECONDS)),
        }
        if since is None:
            parameters |= {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
        else:
            parameters["resourceVersion"] = since
        what = f"watch {kind.plural}"
        response = await self._open("watch", kind, namespace, parameters, what)
        try:
            async for line in _lines(response, what):
                change, body = _parse_event(line, what)
                if change == "ERROR":
                    code = body.get("code")
                    raise error_of(code if isinstance(code, int) else 500, body, what)
                yield change, body
        finally:
            response.close()

    async def pages(self, kind: Kind, namespace: str | None, selector: str) -> AsyncGenerator[tuple[list[Body], str]]:
        """All objects page by page, each page with the version of the list. A failed page is requested again.

        A page that is longer than `PAGE_BYTES` is not read to its end, but requested again with fewer objects.

        Raises:
            Expired: the list took too long.
            ClusterError: a page failed several times.
        """
        parameters = {"labelSelector": selector}
        size = PAGE
        while True:
            page = await self._page(
                kind, namespace, {**parameters, "limit": str(size)}, PAGE_BYTES if size > 1 else None
            )
            if page is None:
                size = max(1, size // 8)
                continue
            size = min(PAGE, 2 * size)
            names = {"apiVersion": kind.api_version, "kind": kind.kind}  # items of a list have neither
            yield [{**names, **item} for item in page.get("items") or ()], str(page["metadata"]["resourceVersion"])
            token = page["metadata"].get("continue")
            if not token:
                return
            parameters = {**parameters, "continue": token}

    async def _page(
        self, kind: Kind, namespace: str | None, parameters: dict[str, str], most: int | None
    ) -> Body | None:
        """A page of a list; None: it has more than `most` bytes."""
        what = f"list {kind.plural}"
        tries = 0
        while True:
            tries += 1
            try:
                response = await self._open("list", kind, namespace, parameters, what)
                try:
                    text = await _read(response, most)
                    return None if text is None else _parse_page(text)
                except (aiohttp.ClientError, TimeoutError, ValueError) as error:
                    raise Unavailable(f"{what}: {type(error).__name__}: {error}") from error
                finally:
                    response.close()
            except Unavailable as error:
                if tries == PAGE_TRIES:
                    raise
                await asyncio.sleep(error.after or PAGE_PAUSE * 2 ** (tries - 1))

    async def _open(
        self, verb: str, kind: Kind, namespace: str | None, parameters: dict[str, str], what: str
    ) -> aiohttp.ClientResponse:
        """Send a request; if its credentials are rejected, once more with renewed ones. The answer is not read yet."""
        timeout = aiohttp.ClientTimeout(total=None, connect=CONNECT_SECONDS, sock_read=SILENCE_SECONDS)
        rejected: Loaded | None = None
        while True:
            client = await self._authenticated_client(what, rejected)
            used = self._used
            begun = time.monotonic()
            code = 0
            request: Any = await client.param_serialize(
                "GET",
                kind.path(namespace),
                query_params=list(parameters.items()),
                header_params={"Accept": "application/json"},
                auth_settings=["BearerToken"],
            )
            try:
                response = (await client.call_api(*request, _request_timeout=timeout)).response
                code = response.status
                if code == 200:
                    return response
                reply = await response.read()
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                self._note_untrusted(error, used)
                raise Unavailable(f"{what}: {type(error).__name__}: {error}") from error
            finally:
                self._meter(verb, kind.plural, code, time.monotonic() - begun)
            if code != 401 or rejected is not None:
                raise error_of(code, parse_json(reply), what, response.headers.get("Retry-After"))
            rejected = used


def _parse_event(line: bytes, what: str) -> tuple[str, Body]:
    """Type and object of an event.

    Raises:
        Unavailable: it is none, as the page of a proxy between operator and API server.
    """
    try:
        event = load_json(line)
        change = event["type"]
        body = event["object"]
        if change == "ERROR" or isinstance(body["metadata"], dict):
            return str(change), body
    except (ValueError, KeyError, TypeError):
        pass
    raise Unavailable(f"{what}: the answer is not a watch of the API server: {line[:100]!r}")


def _parse_page(text: bytes) -> Body:
    """A page of a list.

    Raises:
        ValueError: it is none.
    """
    page = load_json(text)
    if not (
        isinstance(page, dict) and isinstance(page.get("metadata"), dict) and "resourceVersion" in page["metadata"]
    ):
        raise ValueError("the answer is not a list of the API server")
    return page


def is_end_of_list(bookmark: Body) -> bool:
    """Whether a bookmark follows the last object of a streamed list."""
    annotations = bookmark["metadata"].get("annotations") or {}
    return annotations.get("k8s.io/initial-events-end") == "true"


async def _read(response: aiohttp.ClientResponse, most: int | None) -> bytes | None:
    """The body of an answer; None: it has more than `most` bytes."""
    text = bytearray()
    async for part in response.content.iter_any():
        text += part
        if most is not None and len(text) > most:
            return None
    return bytes(text)


async def _lines(response: aiohttp.ClientResponse, what: str) -> AsyncIterator[bytes]:
    """Lines of an answer. aiohttp's own iteration refuses lines that exceed its buffer, which large objects do."""
    unfinished = bytearray()
    try:
        async for part in response.content.iter_any():
            unfinished += part
            *lines, last = unfinished.split(b"\n")
            if lines:
                unfinished = last
            for line in lines:
                if line:
                    yield bytes(line)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise Unavailable(f"{what}: {type(error).__name__}: {error}") from error
    if unfinished:
        raise Unavailable(f"{what}: the connection ended within an object")
