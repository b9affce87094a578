"""A small HTTP server for tests of the clients of the API server, and credentials for it."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web
from kubernetes.aio.client import Configuration

from omni_operator.cluster.credentials import Credentials, Loaded, NoCredentials


@asynccontextmanager
async def serving(
    handle: Callable[[web.Request], Awaitable[web.StreamResponse]], port: int = 0, context: ssl.SSLContext | None = None
) -> AsyncIterator[int]:
    """Answer every request by `handle` while the context is open. Yields the port; 0: a free one."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port, ssl_context=context).start()
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()


def loaded(port: int, token: str = "t", host: str = "127.0.0.1") -> Loaded:
    """Credentials with a token for a server without TLS."""
    configuration = Configuration(host=f"http://{host}:{port}", api_key={"BearerToken": f"Bearer {token}"})
    return Loaded(configuration, "ns")


class RotatingCredentials(Credentials):
    """Credentials whose next tokens are known; loading them when there is none left fails."""

    def __init__(self, port: int, *tokens: str) -> None:
        self._left = [loaded(port, token) for token in tokens]
        self._lock = asyncio.Lock()
        self.loads = 0
        self.loaded = self._left.pop(0)

    async def current(self, rejected: Loaded | None = None) -> Loaded:
        async with self._lock:
            if self.loaded is rejected:
                self.loads += 1
                await asyncio.sleep(0.01)
                if not self._left:
                    raise NoCredentials("the plug-in failed")
                self.loaded = self._left.pop(0)
            return self.loaded
