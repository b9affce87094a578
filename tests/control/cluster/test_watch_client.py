"""The client of watches, against a small HTTP server: requests as sent, long lines, errors, pages, credentials."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from control.cluster.local_server import RotatingCredentials, serving
from omni_operator.cluster.client import CONNECTIONS, ApiServer
from omni_operator.cluster.errors import Expired, KindAbsent, Refused, Unavailable
from omni_operator.cluster.kinds import JOBS, PODS, Body
from omni_operator.cluster.watch import watch_client as module
from omni_operator.cluster.watch.watch_client import WatchClient

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Server:
    """An HTTP server with scripted answers, the last of which repeats."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.requests: list[web.Request] = []
        self.metered: list[tuple[str, str, int]] = []
        self.port = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        return await (self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])(request)

    def client(self, *tokens: str) -> WatchClient:
        def meter(verb: str, resource: str, code: int, seconds: float) -> None:
            self.metered.append((verb, resource, code))

        return WatchClient(RotatingCredentials(self.port, *tokens or ("t",)), meter, version="1")


def says(code: int, **body: Any) -> Answer:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.json_response(body, status=code)

    return answer


def streams(*events: Body, cut: bool = False) -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        text = b"".join(json.dumps(event).encode() + b"\n" for event in events)
        await response.write(text[:-5] if cut else text)
        return response

    return answer


# What a proxy may answer instead of the API server.
NO_EVENTS = (
    *("<html>sign in</html>", "null", "[]", "7", "{}"),
    '{"type": "ADDED"}',
    '{"type": "ADDED", "object": null}',
    '{"type": "ADDED", "object": {"metadata": 1}}',
    '{"object": {}}',
)


def page(text: str) -> Answer:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(text=f"{text}\n")

    return answer


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Server]:
    monkeypatch.setattr(module, "PAGE_PAUSE", 0.0)
    answering = Server()
    async with serving(answering.handle) as answering.port:
        yield answering


def event(change: str, name: str, text: str = "") -> Body:
    return {"type": change, "object": {"metadata": {"name": name, "resourceVersion": "5"}, "text": text}}


async def read(client: WatchClient, since: str | None) -> list[tuple[str, str]]:
    async with asyncio.timeout(10):
        return [(change, body["metadata"]["name"]) async for change, body in client.changes(JOBS, None, "a=b", since)]


async def test_the_first_watch_asks_for_a_streamed_list_and_the_next_for_changes(server: Server) -> None:
    server.answers = [streams(event("ADDED", "a", "x" * 3_000_000), event("ADDED", "b"))]
    async with server.client() as client:
        assert await read(client, None) == [("ADDED", "a"), ("ADDED", "b")], "lines may be longer than any buffer"
        await read(client, "5")
    first, second = (dict(request.query) for request in server.requests)
    assert (first["sendInitialEvents"], first["resourceVersionMatch"]) == ("true", "NotOlderThan")
    assert "resourceVersion" not in first, "the list is as new as etcd"
    assert second["resourceVersion"] == "5"
    assert "sendInitialEvents" not in second
    assert {query["labelSelector"] for query in (first, second)} == {"a=b"}
    assert server.metered == [("watch", "diffusionrljobs", 200)] * 2


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (says(410, message="old"), Expired),
        (streams({"type": "ERROR", "object": {"code": 410, "message": "old"}}), Expired),
        (streams({"type": "ERROR", "object": {"code": 500}}), Unavailable),
        (streams(event("ADDED", "a"), cut=True), Unavailable),
        (streams({"type": "ERROR", "object": {"code": "many"}}), Unavailable),
        *((page(text), Unavailable) for text in NO_EVENTS),
        (says(422, message="sendInitialEvents is forbidden for watch"), Refused),
        (says(404, message="the server could not find the requested resource"), KindAbsent),
        (says(429), Unavailable),
        (says(401), Unavailable),
    ],
    ids=[
        *("gone", "gone-event", "error-event", "cut", "odd-code"),
        *map(repr, NO_EVENTS),
        *("no-streams", "no-kind", "busy", "rejected"),
    ],
)
async def test_errors_by_meaning(server: Server, answer: Answer, error: type[Exception]) -> None:
    server.answers = [answer]
    async with server.client("t", "u") as client:
        with pytest.raises(error):
            await read(client, None)


async def test_a_watch_that_is_silent_for_longer_than_bookmarks_are_apart_ends(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection whose other end is gone delivers nothing and does not break."""
    assert 60 < module.SILENCE_SECONDS <= 70, "the API server sends a bookmark each minute"

    ends = asyncio.Event()

    async def hang(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(json.dumps(event("ADDED", "a")).encode() + b"\n")
        await ends.wait()
        return response

    monkeypatch.setattr(module, "SILENCE_SECONDS", 0.05)
    server.answers = [hang]
    seen = []

    async def follow(client: WatchClient) -> None:
        async for change, body in client.changes(JOBS, None, "", "4"):
            seen.append((change, body["metadata"]["name"]))

    async with server.client() as client, asyncio.timeout(10):
        with pytest.raises(Unavailable, match="Timeout"):
            await follow(client)
    ends.set()
    assert seen == [("ADDED", "a")]


async def test_rejected_credentials_are_renewed_once(server: Server) -> None:
    server.answers = [says(401), streams(event("ADDED", "a"))]
    async with server.client("old", "new") as client:
        assert await read(client, "1") == [("ADDED", "a")]
    assert [request.headers["Authorization"] for request in server.requests] == ["Bearer old", "Bearer new"]


async def test_a_failed_page_is_requested_again_and_not_the_list(server: Server) -> None:
    def page(name: str, token: str = "") -> Answer:
        return says(200, metadata={"resourceVersion": "9", "continue": token}, items=[{"metadata": {"name": name}}])

    server.answers = [page("a", "first"), says(500), says(503), page("b", "second"), says(500), page("c")]
    async with server.client() as client:
        names_and_versions = [
            (body["metadata"]["name"], version) async for page, version in client.pages(PODS, "ns", "") for body in page
        ]
    assert names_and_versions == [("a", "9"), ("b", "9"), ("c", "9")]
    tokens = [request.query.get("continue") for request in server.requests]
    assert tokens == [None, "first", "first", "first", "second", "second"]


@pytest.mark.parametrize("text", [*NO_EVENTS, '{"metadata": {}}'])
async def test_a_page_that_is_no_list_is_an_error_that_is_retried(server: Server, text: str) -> None:
    server.answers = [page(text)]
    async with server.client() as client:
        with pytest.raises(Unavailable):
            async for _ in client.pages(JOBS, None, ""):
                pass
    assert len(server.requests) == module.PAGE_TRIES


async def test_a_page_of_large_objects_is_requested_with_fewer_of_them(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full page of jobs of the largest size would take more memory than the operator has."""
    monkeypatch.setattr(module, "PAGE", 16)
    monkeypatch.setattr(module, "PAGE_BYTES", 3000)
    names = [f"o-{number}" for number in range(40)]
    large = range(10, 14)

    async def answer(request: web.Request) -> web.StreamResponse:
        begin = int(request.query.get("continue", 0))
        end = min(len(names), begin + int(request.query["limit"]))
        items = [
            {"metadata": {"name": name}, "text": "x" * 5000 * (number in large)}
            for number, name in enumerate(names[begin:end], begin)
        ]
        token = str(end) if end < len(names) else ""
        return web.json_response({"metadata": {"resourceVersion": "9", "continue": token}, "items": items})

    server.answers = [answer]
    async with server.client() as client:
        received = [body["metadata"]["name"] async for page, _ in client.pages(PODS, "ns", "") for body in page]
    assert received == names
    sizes = [int(request.query["limit"]) for request in server.requests]
    assert sizes[:3] == [16, 2, 4]
    assert sizes[-1] == 16


async def test_every_watch_has_a_connection_whatever_limits_other_requests(server: Server) -> None:
    """Eight kinds in each of several namespaces need more connections than requests may use."""
    watches = CONNECTIONS + 8
    done = asyncio.Event()

    async def hold(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await done.wait()
        return response

    server.answers = [hold]
    credentials = RotatingCredentials(server.port, "t")

    async with (
        ApiServer(credentials, lambda *_: None, version="1"),
        WatchClient(credentials, lambda *_: None, version="1") as client,
    ):
        reads = [asyncio.create_task(read(client, "1")) for _ in range(watches)]
        async with asyncio.timeout(10):
            while len(server.requests) < watches:
                await asyncio.sleep(0)
        done.set()
        assert await asyncio.gather(*reads) == [[]] * watches
