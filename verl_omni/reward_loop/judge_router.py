"""Router of a judge's replicas: passes each request on to the least loaded one, and says which do not answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aiohttp import ClientConnectionError, ClientSession, ClientTimeout, TCPConnector, web

LARGEST_REQUEST = 256 * 2**20  # bytes: a request carries images
CONNECT_SECONDS = 10.0
# Headers of one connection (RFC 9110, 7.6.1), and those that aiohttp writes itself.
OF_THE_CONNECTION = frozenset({"connection", "content-encoding", "content-length", "host", "transfer-encoding"})


class JudgeRouter:
    """HTTP server with the routes of the replicas.

    A replica that refuses connections gets no further requests; its requests go to another one. The status and the body
    of an answer are passed on as they are. Without a replica that answers, the status is 503, with the reason of each.

    Args:
        replicas: host:port of each replica.
        name: what the judge is called in errors.
    """

    def __init__(self, replicas: Sequence[str], name: str) -> None:
        self._name = name
        self._in_flight = dict.fromkeys(replicas, 0)
        self._failed: dict[str, str] = {}

    async def start(self, host: str) -> str:
        """Listen on a free port. Returns host:port."""
        app = web.Application(client_max_size=LARGEST_REQUEST)
        app.router.add_route("*", "/{path:.*}", self._pass_on)
        app.cleanup_ctx.append(self._connect)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, host, 0).start()
        (address, *_) = self._runner.addresses
        shown = f"[{host}]" if ":" in host else host
        return f"{shown}:{address[1]}"

    async def stop(self) -> None:
        """Stop listening."""
        await self._runner.cleanup()

    async def _connect(self, app: web.Application) -> Any:
        # How long an answer may take is the client's decision.
        limits = ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
        async with ClientSession(connector=TCPConnector(limit=0), timeout=limits) as self._session:
            yield

    async def _pass_on(self, request: web.Request) -> web.Response:
        body = await request.read()
        headers = without_connection(request.headers)
        while alive := [replica for replica in self._in_flight if replica not in self._failed]:
            replica = min(alive, key=self._in_flight.__getitem__)
            self._in_flight[replica] += 1
            try:
                async with self._session.request(
                    request.method, f"http://{replica}{request.rel_url}", data=body, headers=headers
                ) as answer:
                    found = await answer.read()
                    return web.Response(body=found, status=answer.status, headers=without_connection(answer.headers))
            except (TimeoutError, ClientConnectionError) as error:
                self._failed[replica] = f"{type(error).__name__}: {error}"
            finally:
                self._in_flight[replica] -= 1
        reasons = "; ".join(f"replica {replica}: {reason}" for replica, reason in self._failed.items())
        return web.json_response({"error": {"message": f"{self._name} has no replica left: {reasons}"}}, status=503)


def without_connection(headers: Mapping[str, str]) -> dict[str, str]:
    """PURE: the headers that a proxy passes on."""
    return {name: value for name, value in headers.items() if name.lower() not in OF_THE_CONNECTION}
