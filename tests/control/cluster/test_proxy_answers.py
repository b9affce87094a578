"""Answers with the code 200 that are not of the API server but of a proxy in front of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from control.cluster.local_server import serving
from control.cluster.test_api_server import JOB, RecordingServer, client
from omni_operator.cluster.client import ApiServer
from omni_operator.cluster.errors import Unavailable
from omni_operator.cluster.kinds import JOBS


@pytest.fixture
async def server() -> AsyncIterator[RecordingServer]:
    made = RecordingServer()
    async with serving(made.handle) as made.port:
        yield made


@pytest.mark.parametrize("body", [{}, {"error": "sign in"}, {"metadata": {}, "items": []}])
async def test_an_answer_that_is_no_object_is_that_of_a_proxy(server: RecordingServer, body: dict[str, Any]) -> None:
    server.answer = lambda _: web.json_response(body)
    requests: list[Callable[[ApiServer], Awaitable[object]]] = [
        lambda cluster: cluster.apply(JOB),
        lambda cluster: cluster.read(JOBS, "ns", "red"),
        lambda cluster: cluster.list_metadata(JOBS, None, ""),
        lambda cluster: cluster.read_schema(JOBS),
        lambda cluster: cluster.review_token("secret", "mine"),
        lambda cluster: cluster.serves(JOBS),
    ]
    async with client(server) as cluster:
        for request in requests:
            with pytest.raises(Unavailable, match="not an answer of the API server"):
                await request(cluster)
