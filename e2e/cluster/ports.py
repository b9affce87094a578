"""Free ports on the loopback."""

import random
import socket
from contextlib import ExitStack

from .errors import ClusterError

# Below the kernel's range for outgoing connections, so that a free port stays free.
RANGE = range(20000, 32000)
TRIES = 200


def free_ports(count: int, chance: random.Random) -> list[int]:
    """`count` different ports that are free now.

    Raises:
        ClusterError: none was found in 200 tries each.
    """
    ports: list[int] = []
    with ExitStack() as held:
        for _ in range(count):
            for _ in range(TRIES):
                port = chance.choice(RANGE)
                listener = held.enter_context(socket.socket())
                try:
                    listener.bind(("127.0.0.1", port))
                except OSError:
                    continue
                ports.append(port)
                break
            else:
                raise ClusterError(f"no free port on the loopback between {RANGE.start} and {RANGE.stop}")
    return ports
