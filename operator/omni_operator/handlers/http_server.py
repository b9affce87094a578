"""`/healthz`, `/readyz` and `/metrics` on one port, reports on another one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from aiohttp import web

from omni_operator.cluster.watch_liveness import WatchLiveness
from omni_operator.metrics import CONTENT_TYPE, OperatorMetrics


def probe_routes(liveness: WatchLiveness, metrics: OperatorMetrics, clock: Callable[[], float]) -> list[web.RouteDef]:
    """Routes for kubelets and Prometheus."""

    async def alive(_: web.Request) -> web.Response:
        late = liveness.overdue(clock())
        return web.Response(text="\n".join(late) or "alive", status=503 if late else 200)

    async def ready(_: web.Request) -> web.Response:
        if liveness.ready:
            return web.Response(text="ready")
        return web.Response(text="the first lists are not read", status=503)

    async def figures(_: web.Request) -> web.Response:
        return web.Response(body=metrics.page(), headers={"Content-Type": CONTENT_TYPE})

    return [web.get("/healthz", alive), web.get("/readyz", ready), web.get("/metrics", figures)]


@asynccontextmanager
async def serving(
    routes: Sequence[web.RouteDef], port: int, body_limit: int = 1024, host: str | None = None
) -> AsyncIterator[int]:
    """Serve on all addresses, or on one; the port, which is a free one of that address for 0.

    Raises:
        OSError: the port is taken.
    """
    app = web.Application(client_max_size=body_limit)
    app.add_routes(routes)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=2.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        await site.start()
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()
