"""HTTP proxy between an operator and the API server: it answers with errors, freezes watches, hangs up, or calls back.

The operator speaks HTTP to it, it speaks HTTPS to the API server as an administrator.
"""

import asyncio
import json
import random
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from aiohttp import web

from e2e.cluster import pki
from e2e.cluster.control_plane import ControlPlane
from e2e.cluster.ports import free_ports

HOP_BY_HOP = {"connection", "host", "keep-alive", "transfer-encoding", "content-length"}


@dataclass(frozen=True, slots=True)
class Call:
    """A request of the operator."""

    method: str
    path: str
    body: bytes

    @property
    def writes(self) -> bool:
        return self.method != "GET"


@dataclass(slots=True)
class FaultProxy:
    """The proxy; its attributes may be changed while it runs.

    Attributes:
        away: connections end without an answer.
        frozen: watches whose path contains this text deliver nothing, not even their end; None: all deliver.
        answer: status code and Retry-After instead of the API server's answer; None: the API server answers.
        answered: called when the API server has answered, before the operator gets it.
    """

    plane: ControlPlane
    port: int
    away: bool = False
    frozen: str | None = None
    answer: Callable[[Call], tuple[int, int] | None] = lambda call: None
    answered: Callable[[Call], None] = lambda call: None
    refused: list[Call] = field(default_factory=list)

    def kubeconfig(self, folder: Path) -> Path:
        """A kubeconfig that leads to the proxy."""
        path = folder / "proxied"
        cluster = {"name": "proxied", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}
        context = {"name": "proxied", "context": {"cluster": "proxied", "user": "proxied"}}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [cluster],
            "contexts": [context],
            "users": [{"name": "proxied", "user": {"token": "replaced"}}],
            "current-context": "proxied",
        }
        path.write_text(json.dumps(config), encoding="utf-8")
        return path

    async def serve(self, ready: threading.Event, stop: asyncio.Event) -> None:
        """Serve until `stop`."""
        trust = ssl.create_default_context(cafile=str(self.plane.authority.certificate))
        trust.load_cert_chain(*self.plane.authority.issue(pki.ADMIN))
        connector = aiohttp.TCPConnector(ssl=trust, limit=0)
        async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as session:

            async def handle(request: web.Request) -> web.StreamResponse:
                return await self._handle(session, request)

            application = web.Application(client_max_size=2**26)
            application.router.add_route("*", "/{path:.*}", handle)
            runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=0.1)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", self.port).start()
            ready.set()
            await stop.wait()
            await runner.cleanup()

    async def _handle(self, session: aiohttp.ClientSession, request: web.Request) -> web.StreamResponse:
        call = Call(request.method, request.path, await request.read())
        if self.away:
            return _hang_up(request)
        if instead := self.answer(call):
            self.refused.append(call)
            code, after = instead
            status = {"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code, "message": "a fault"}
            return web.json_response(status, status=code, headers={"Retry-After": str(after)})
        headers = {
            name: value for name, value in request.headers.items() if name.lower() not in {*HOP_BY_HOP, "authorization"}
        }
        url = self.plane.layout.server + request.raw_path
        async with session.request(
            request.method, url, data=call.body or None, headers=headers, timeout=aiohttp.ClientTimeout(total=None)
        ) as response:
            if "watch" in request.query:
                return await self._stream(request, response)
            body = await response.read()
            self.answered(call)
            if self.away:
                return _hang_up(request)
            return web.Response(status=response.status, body=body, headers=_passed(response))

    async def _stream(self, request: web.Request, found: aiohttp.ClientResponse) -> web.StreamResponse:
        response = web.StreamResponse(status=found.status, headers=_passed(found))
        await response.prepare(request)
        async for chunk in found.content.iter_any():
            await self._until_delivered(request)
            if self.away:
                return _hang_up(request)
            await response.write(chunk)
        await self._until_delivered(request)  # the API server ends watches of a kind whose definition has changed
        return response

    async def _until_delivered(self, request: web.Request) -> None:
        while self.frozen is not None and self.frozen in request.path and not self.away:
            await asyncio.sleep(0.1)


def _hang_up(request: web.Request) -> web.Response:
    if request.transport:
        request.transport.abort()
    return web.Response()


def _passed(found: aiohttp.ClientResponse) -> dict[str, str]:
    return {name: value for name, value in found.headers.items() if name.lower() not in {*HOP_BY_HOP, "date"}}


@contextmanager
def fault_proxy(plane: ControlPlane) -> Iterator[FaultProxy]:
    """A proxy in a separate thread."""
    (port,) = free_ports(1, random.Random())
    proxy = FaultProxy(plane, port)
    ready = threading.Event()
    ends = []

    async def run() -> None:
        stop = asyncio.Event()
        ends.append((asyncio.get_running_loop(), stop))
        await proxy.serve(ready, stop)

    thread = threading.Thread(target=asyncio.run, args=(run(),), daemon=True)
    thread.start()
    try:
        assert ready.wait(30), "the proxy does not start"
        yield proxy
    finally:
        for loop, stop in ends:
            loop.call_soon_threadsafe(stop.set)
        thread.join(30)
