"""HTTP servers of the operator: `/healthz`, `/readyz` and `/metrics` on one port, reports of trainers on another."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from typing_extensions import override

from omni_operator.cluster.watch.watch_liveness import WatchLiveness
from omni_operator.metrics import CONTENT_TYPE, OperatorMetrics
from omni_operator.reports.authorizer import source_of

# Below 1024 together, which is what many container runtimes let a process open.
PROBE_CONNECTIONS = 64
REPORT_CONNECTIONS = 512
BACKLOG = 128


def _is_own_error(record: logging.LogRecord) -> bool:
    """False for requests that are not HTTP: anyone who reaches the port could fill the log with tracebacks."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


def probe_routes(liveness: WatchLiveness, metrics: OperatorMetrics, clock: Callable[[], float]) -> list[web.RouteDef]:
    """Routes for the kubelet's probes and Prometheus."""

    async def alive(_: web.Request) -> web.Response:
        overdue = liveness.overdue(clock())
        return web.Response(text="\n".join(overdue) or "alive", status=503 if overdue else 200)

    async def ready(_: web.Request) -> web.Response:
        if liveness.ready:
            return web.Response(text="ready")
        return web.Response(text="not ready: the first watch event has not arrived", status=503)

    async def scrape(_: web.Request) -> web.Response:
        return web.Response(body=await metrics.page(), headers={"Content-Type": CONTENT_TYPE})

    return [web.get("/healthz", alive), web.get("/readyz", ready), web.get("/metrics", scrape)]


@asynccontextmanager
async def serve(
    routes: Sequence[web.RouteDef],
    port: int,
    body_limit: int = 1024,
    host: str | None = None,
    connections: int = REPORT_CONNECTIONS,
    idle: float = 30.0,
    rest: float = 5.0,
) -> AsyncIterator[int]:
    """Serve routes while the context is open. Yields the port; `port=0` picks a free one.

    Args:
        host: address to listen on; None: all.
        connections: maximum number of open connections.
        idle: seconds that a client has until all headers of its next request have arrived.
        rest: seconds for the rest of a body that the answer did not wait for.

    Raises:
        OSError: the port is taken.
    """
    log = logging.getLogger(__name__)
    log.addFilter(_is_own_error)
    app = web.Application(client_max_size=body_limit)
    app.add_routes(routes)
    runner = web.AppRunner(
        app,
        access_log=None,
        shutdown_timeout=2.0,
        auto_decompress=False,
        keepalive_timeout=idle,
        lingering_time=rest,
        logger=log,
    )
    await runner.setup()
    server = runner.server
    assert server is not None  # it is set up
    try:
        listening = await asyncio.get_running_loop().create_server(
            lambda: LimitedConnection(server, connections), host, port, backlog=BACKLOG
        )
        try:
            yield int(listening.sockets[0].getsockname()[1])
        finally:
            listening.close()
    finally:
        await runner.cleanup()


class Connection(Protocol):
    """An open connection, as aiohttp's request handler is one; None after it was lost."""

    @property
    def transport(self) -> asyncio.Transport | None: ...


@dataclass(slots=True)
class LimitedConnection(asyncio.Protocol):
    """Makes room for a new connection, then leaves it to the server.

    Each connection takes a file descriptor, which the process also needs to reach the API server and to answer probes,
    and anyone who reaches the port can open connections. So at the limit one is closed for each new one: the oldest one
    of the sender that has most of them. A flood closes its own connections, and others keep theirs.

    Attributes:
        most: open connections of the server.
    """

    server: web.Server
    most: int

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        if surplus := find_surplus(self.server.connections, self.most):
            surplus.abort()
        handler = self.server()
        transport.set_protocol(handler)
        handler.connection_made(transport)


def find_surplus(connections: Iterable[Connection], most: int) -> asyncio.Transport | None:
    """The connection to close before another one is accepted; None below the limit. The oldest ones come first."""
    open_of: defaultdict[str, list[asyncio.Transport]] = defaultdict(list)
    for connection in connections:
        transport = connection.transport
        if transport is not None and not transport.is_closing():
            address = transport.get_extra_info("peername") or ("",)
            open_of[source_of(str(address[0]))].append(transport)
    if sum(map(len, open_of.values())) < most:
        return None
    return max(open_of.values(), key=len)[0]
