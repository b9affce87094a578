"""kopf's HTTP session: objects of any depth and size arrive as JSON that Python parses."""

import json
from collections.abc import AsyncIterator

import pytest
from aiohttp import ClientSession, web
from kubernetes.aio.client import Configuration

from control.cluster.local_server import serving
from omni_operator.cluster.credentials import Loaded
from omni_operator.handlers.kopf_login import connection_info, new_session

LEVELS = 12_000
DEEP = b'{"a":' * LEVELS + b"1" + b"}" * LEVELS
LONG = json.dumps({"text": "x" * 1_500_000}).encode()
LINES = [b'{"b": 1}', DEEP, LONG, b'{"c": [1, {"d": 2}]}']


@pytest.fixture
async def session() -> AsyncIterator[tuple[ClientSession, str]]:
    """A session for a server that sends lines, the last one without its end, or an object that is nested deeply."""

    async def answer(request: web.Request) -> web.StreamResponse:
        assert request.headers["Authorization"] == "Bearer secret"
        if request.path == "/object":
            return web.Response(body=DEEP, content_type="application/json")
        response = web.StreamResponse()
        await response.prepare(request)
        text = b"\n".join(LINES) + b'\n{"broken'
        for start in range(0, len(text), 70_001):
            await response.write(text[start : start + 70_001])
        return response

    async with serving(answer) as port:
        configuration = Configuration(host=f"http://127.0.0.1:{port}")
        configuration.api_key = {"BearerToken": "Bearer secret"}
        context = new_session(await connection_info(Loaded(configuration, "ns")))
        async with context.aiohttp_session:
            yield context.aiohttp_session, context.server


async def test_lines_of_a_watch_are_whole_and_deep_ones_are_cut(session: tuple[ClientSession, str]) -> None:
    client, server = session
    response = await client.get(f"{server}/watch")
    async with response:
        text = b"".join([part async for part in response.content.iter_chunked(2**20)])
    *lines, after_last = text.split(b"\n")
    assert after_last == b"", "what has no end is no event"
    assert [lines[0], *lines[2:]] == [LINES[0], *LINES[2:]]
    assert "(nested too deeply)" in json.dumps(json.loads(lines[1]))


async def test_an_object_that_is_nested_deeply_is_parsed(session: tuple[ClientSession, str]) -> None:
    client, server = session
    response = await client.get(f"{server}/object")
    assert "(nested too deeply)" in json.dumps(await response.json())
