"""Limit of open connections of an HTTP server.

Each connection takes a file descriptor, which the process also needs to reach the API server and to answer probes.
Anyone who reaches the port can open connections. So at the limit one is closed for each new one: the oldest one of the
sender that has most of them. A flood closes its own connections, and others keep theirs.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from aiohttp import web
from typing_extensions import override

from omni_operator.reports.authorizer import source_of


class Connection(Protocol):
    """An open connection, as aiohttp's request handler is one; None after it was lost."""

    @property
    def transport(self) -> asyncio.Transport | None: ...


@dataclass(slots=True)
class LimitedConnection(asyncio.Protocol):
    """Makes room for a new connection, then leaves it to the server.

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
