"""`held_port`: a free port for a process that listens on it seconds after it was chosen."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def held_port() -> Iterator[int]:
    """Hold a TCP port that is free on all addresses of this machine; yields its number.

    In the block, the kernel gives it to nothing that asks for any port, such as Ray's servers, outgoing connections and
    other calls of this function. A socket with SO_REUSEADDR that asks for this port can listen on it: torch's has it.
    """
    dualstack = socket.has_dualstack_ipv6()
    with socket.socket(socket.AF_INET6 if dualstack else socket.AF_INET) as holder:
        if dualstack:
            holder.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        # Two sockets with this option can be bound to one port while only one of them listens.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("", 0))
        yield holder.getsockname()[1]
