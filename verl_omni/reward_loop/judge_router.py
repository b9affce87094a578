"""Router of a judge's replicas: passes each request on to the least loaded one, and says which do not answer."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aiohttp import (
    ClientConnectionError,
    ClientConnectorError,
    ClientPayloadError,
    ClientSession,
    ClientTimeout,
    TCPConnector,
    web,
)

LARGEST_REQUEST = 256 * 2**20  # bytes: a request carries images
CONNECT_SECONDS = 10.0
REASONS_SHOWN = 8
CUT_ANSWERS = 3  # incomplete answers after which a request is no longer retried and its client gets an error
WAIT_SECONDS = 20.0  # for another replica, before the client is told to ask again
WAITING = "x-judge-waiting"  # header of an answer without a replica, where another one may come
# Headers of one connection (RFC 9110, 7.6.1), and those that aiohttp writes itself.
OF_THE_CONNECTION = frozenset({"connection", "content-encoding", "content-length", "host", "transfer-encoding"})


@dataclass
class ReplicaLoad:
    """Requests of one replica.

    Attributes:
        requests: those in flight.
        given_up: those that their clients gave up since the last answer.
        silent_since: seconds of `BusyClock` at the first request since the last answer.
    """

    requests: int = 0
    given_up: int = 0
    silent_since: float = 0.0

    @property
    def owed(self) -> int:
        """By how much a replica is loaded: without `given_up`, one that hangs would look idle."""
        return self.requests + self.given_up

    def sent(self, busy: float) -> None:
        """A request was sent to the replica."""
        if not self.owed:
            self.silent_since = busy
        self.requests += 1

    def answered(self, busy: float) -> None:
        """The replica has answered a request."""
        self.requests -= 1
        self.given_up = 0
        self.silent_since = busy

    def ended(self) -> None:
        """The client gave a request up, or the connection failed."""
        self.requests -= 1
        self.given_up += 1

    def silence(self, busy: float) -> float:
        """Seconds of `BusyClock` in which the replica owed answers and sent none."""
        return busy - self.silent_since if self.owed else 0.0


@dataclass
class BusyClock:
    """Seconds in which a router had requests: between two batches, a replica has none to answer."""

    _requests: int = field(default=0)
    _seconds: float = field(default=0.0)
    _since: float = field(default=0.0)

    def begin(self, now: float) -> None:
        """A request has arrived."""
        if not self._requests:
            self._since = now
        self._requests += 1

    def end(self, now: float) -> None:
        """A request has been answered, or given up."""
        self._requests -= 1
        if not self._requests:
            self._seconds += now - self._since

    def read(self, now: float) -> float:
        """Seconds until now."""
        return self._seconds + (now - self._since if self._requests else 0.0)


class JudgeRouter:
    """HTTP server with the routes of the replicas.

    A replica that refuses connections, or answers nothing for `silence` seconds, gets no further requests; its requests
    go to another one when its connections end. One that ends a connection before the answer is complete may serve other
    requests, and is asked again. The status and the body of an answer are passed on as they are. Without a replica that
    answers, the status is 503, with each replica's reason. It is 502 if a request's answers were cut off
    `CUT_ANSWERS` times.

    Args:
        replicas: host:port of each replica.
        name: name of the judge in error messages.
        silence: seconds after which a replica with unanswered requests is treated as failed.
        wait: seconds that a request without a replica waits for one that is added; its 503 has the header `WAITING`
            then. None: none will be added.
    """

    def __init__(
        self,
        replicas: Sequence[str],
        name: str,
        silence: float,
        wait: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._silence = silence
        self._wait = wait
        self._clock = clock
        self._serving = list(replicas)
        self._loads: dict[str, ReplicaLoad] = {}
        self._busy = BusyClock()
        self._failed: dict[str, str] = {}
        self._added = asyncio.Event()
        self._unanswered = self._peak = 0

    async def start(self, host: str) -> str:
        """Listen on a free port. Returns host:port."""
        app = web.Application(client_max_size=LARGEST_REQUEST)
        app.router.add_route("*", "/{path:.*}", self._count)
        app.cleanup_ctx.append(self._connect)
        # A client that gives up ends its request at the replica too, and it counts as waiting no more.
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, host, 0).start()
        (address, *_) = self._runner.addresses
        shown = f"[{host}]" if ":" in host else host
        return f"{shown}:{address[1]}"

    async def stop(self) -> None:
        """Stop listening."""
        await self._runner.cleanup()

    async def add(self, replica: str) -> None:
        """Send requests to another replica too."""
        self._failed.pop(replica, None)
        self._loads.pop(replica, None)  # left by an earlier replica at this address
        self._serving.append(replica)
        self._added.set()

    async def remove(self, replica: str, reason: str) -> None:
        """Send a replica no more requests; those that it has may end. Nothing happens to one that is not known."""
        if replica in self._serving:
            self._serving.remove(replica)
            self._failed[replica] = reason

    async def failed(self) -> dict[str, str]:
        """Replicas that refused a connection, or did not answer, with the reason."""
        await self._drop_silent()
        return dict(self._failed)

    async def requests(self, replica: str) -> int:
        """Requests that a replica has not answered yet."""
        return self._load(replica).requests

    async def peak(self) -> int:
        """Largest number of requests without an answer since the last call, with those that wait for a replica."""
        peak = self._peak
        self._peak = self._unanswered
        return peak

    async def _connect(self, app: web.Application) -> Any:
        # How long an answer may take is the client's decision.
        limits = ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
        async with ClientSession(connector=TCPConnector(limit=0), timeout=limits) as self._session:
            yield

    async def _count(self, request: web.Request) -> web.Response:
        self._unanswered += 1
        self._busy.begin(self._clock())
        self._peak = max(self._peak, self._unanswered)
        try:
            return await self._pass_on(request)
        finally:
            self._unanswered -= 1
            self._busy.end(self._clock())

    async def _pass_on(self, request: web.Request) -> web.Response:
        body = await request.read()
        headers = without_connection(request.headers)
        cut: list[str] = []
        while len(cut) < CUT_ANSWERS and (replica := await self._choose()):
            load = self._load(replica)
            answered = False
            load.sent(self._busy.read(self._clock()))
            try:
                async with self._session.request(
                    request.method, f"http://{replica}{request.rel_url}", data=body, headers=headers
                ) as answer:
                    content = await answer.read()
                    answered = True
                    return web.Response(body=content, status=answer.status, headers=without_connection(answer.headers))
            except (TimeoutError, ClientConnectorError) as error:
                await self.remove(replica, f"{type(error).__name__}: {error}")
            except (ClientConnectionError, ClientPayloadError) as error:
                cut.append(f"replica {replica}: {type(error).__name__}: {error}")
            finally:
                if answered:
                    load.answered(self._busy.read(self._clock()))
                else:
                    load.ended()
        if len(cut) == CUT_ANSWERS:
            return _error(502, f"{self._name} ended {len(cut)} connections before the answer: {'; '.join(cut)}", {})
        last = list(self._failed.items())[-REASONS_SHOWN:]
        reasons = "; ".join(f"replica {replica}: {reason}" for replica, reason in last)
        text = f"{self._name} has no replica left: {reasons}"
        headers = {} if self._wait is None else {WAITING: "1"}
        return _error(503, text, headers)

    async def _choose(self) -> str | None:
        """The replica with the fewest requests; None if there is none, and none comes in time."""
        await self._drop_silent()
        if not self._serving and self._wait is not None:
            self._added.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._added.wait(), self._wait)
        return min(self._serving, key=lambda replica: self._load(replica).owed, default=None)

    async def _drop_silent(self) -> None:
        busy = self._busy.read(self._clock())
        for replica in list(self._serving):
            if (seconds := self._load(replica).silence(busy)) > self._silence:
                await self.remove(replica, f"it has requests, and has answered none for {seconds:.0f} s")

    def _load(self, replica: str) -> ReplicaLoad:
        return self._loads.setdefault(replica, ReplicaLoad())


def _error(status: int, text: str, headers: Mapping[str, str]) -> web.Response:
    return web.json_response({"error": {"message": text}}, status=status, headers=headers)


def without_connection(headers: Mapping[str, str]) -> dict[str, str]:
    """PURE: the headers that a proxy passes on."""
    return {name: value for name, value in headers.items() if name.lower() not in OF_THE_CONNECTION}
