"""Connection floods: a server limits the number of open connections, and connections of other senders stay open."""

import asyncio
import resource
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from omni_operator.cluster.cache.object_cache import ObjectCache
from omni_operator.handlers.http_server import find_surplus, serve
from omni_operator.main import raise_file_limit
from omni_operator.metrics import JobMetrics, OperatorMetrics

MOST = 8
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def open_from(source: str, port: int) -> Streams:
    return await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))


async def ask(streams: Streams) -> bytes:
    """The first word of the answer to a request; nothing if the connection was closed."""
    reader, writer = streams
    try:
        writer.write(b"GET /alive HTTP/1.1\r\nHost: x\r\n\r\n")
        await writer.drain()
        return (await reader.readuntil(b"alive"))[:12]
    except (ConnectionError, asyncio.IncompleteReadError):
        return b""


@pytest.fixture
async def port() -> AsyncIterator[int]:
    async def alive(_: web.Request) -> web.Response:
        return web.Response(text="alive")

    async with serve([web.get("/alive", alive)], 0, host="127.0.0.1", connections=MOST) as port:
        yield port


@asynccontextmanager
async def opened() -> AsyncIterator[list[Streams]]:
    connections: list[Streams] = []
    try:
        yield connections
    finally:
        for _, writer in connections:
            writer.close()


async def test_a_flood_closes_its_own_connections_and_those_of_others_stay(port: int) -> None:
    async with opened() as streams:
        for number in range(3):
            streams.append(await open_from(f"127.0.0.{number + 2}", port))
            assert await ask(streams[-1]) == b"HTTP/1.1 200"
        for _ in range(5 * MOST):
            streams.append(await open_from("127.0.0.9", port))
        answers = [await ask(connection) for connection in streams]
        assert answers[:3] == [b"HTTP/1.1 200"] * 3
        flood = answers[3:]
        left = MOST - 3
        assert flood == [b""] * (len(flood) - left) + [b"HTTP/1.1 200"] * left, "the newest ones stay"
        streams.append(await open_from("127.0.0.7", port))
        assert await ask(streams[-1]) == b"HTTP/1.1 200", "another sender is let in"


async def test_connections_that_were_closed_do_not_count(port: int) -> None:
    async with opened() as streams:
        streams.append(await open_from("127.0.0.2", port))
        for _ in range(5 * MOST):
            reader, writer = await open_from("127.0.0.9", port)
            assert await ask((reader, writer)) == b"HTTP/1.1 200"
            writer.close()
            await writer.wait_closed()
        assert await ask(streams[0]) == b"HTTP/1.1 200"


def test_the_process_may_open_as_many_files_as_the_system_lets_it() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, hard), hard))
        raise_file_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_one_network_of_ipv6_is_one_sender() -> None:
    class Open:
        """A connection from an address."""

        def __init__(self, address: str) -> None:
            self.address = address
            self.transport = self

        def is_closing(self) -> bool:
            return False

        def get_extra_info(self, name: str) -> tuple[str, int]:
            return self.address, 0

    connections: list[Any] = [Open("192.0.2.1"), Open("192.0.2.1"), Open("2001:db8::1"), Open("2001:db8::2")]
    connections.append(Open("2001:db8::ffff"))
    assert find_surplus(connections, 5) is connections[2]
    assert find_surplus(connections, 6) is None


async def test_scrapes_at_the_same_time_share_one_page() -> None:
    class CountedJobs(JobMetrics):
        """Counts the pages."""

        pages = 0

        def shown(self) -> Any:
            CountedJobs.pages += 1
            return super().shown()

    metrics = OperatorMetrics(CountedJobs(ObjectCache(), 10))
    pages = await asyncio.gather(*(metrics.page() for _ in range(50)))
    assert (CountedJobs.pages, len(set(pages))) == (1, 1)
    cancelled = asyncio.create_task(metrics.page())
    patient = asyncio.create_task(metrics.page())
    await asyncio.sleep(0)
    cancelled.cancel()
    assert b"diffusionrl_jobs" in await patient, "one that gives up does not end the page of others"
    assert CountedJobs.pages == 2
