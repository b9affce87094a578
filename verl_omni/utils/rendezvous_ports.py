"""Ports at which processes of `torch.distributed` meet: the first of them listens seconds after a port was chosen."""

import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager

# Below the kernel's ephemeral ports (from 32768 on), some of which Ray's servers use too, and the ports of Kubernetes'
# Services (from 30000 on); above the ports of Ray's workers (up to 19999).
RANGE = range(20000, 30000)


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


def search_range(chance: random.Random) -> list[int]:
    """`master_port_range` of verl's worker group, whose processes may be on another machine than this one.

    It begins at a random port, so that two runs that start on one machine choose different ones.
    """
    return [chance.choice(RANGE[: len(RANGE) // 2]), RANGE.stop]
