"""The port of torch's rendezvous, which is held until the engine's worker listens on it."""

import errno
import socket
import struct

import pytest
import torch.distributed as dist
from vllm_omni.diffusion.utils.network_utils import is_port_available

from verl_omni.utils.rendezvous_ports import held_port

IP_LOCAL_PORT_RANGE = 51  # linux/in.h: the range in which the kernel chooses a port for one socket, since Linux 6.3


def asking_for_any_port(first: int, last: int, family: int = socket.AF_INET, *, reuse: bool = False) -> socket.socket:
    """A socket for which the kernel chooses a port of this range."""
    asking = socket.socket(family)
    try:
        asking.setsockopt(socket.IPPROTO_IP, IP_LOCAL_PORT_RANGE, struct.pack("=I", first | last << 16))
    except OSError as error:
        assert error.errno == errno.ENOPROTOOPT
        pytest.skip("the kernel chooses from one range for all sockets: IP_LOCAL_PORT_RANGE is in Linux 6.3 and later")
    if reuse:
        asking.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return asking


@pytest.mark.parametrize("reuse", [False, True])
@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", *(["::"] if socket.has_dualstack_ipv6() else [])])
def test_a_held_port_is_not_given_to_a_server_that_asks_for_any(address: str, reuse: bool) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with held_port() as port:
        with asking_for_any_port(port, port, family, reuse=reuse) as asking, pytest.raises(OSError, match="in use"):
            asking.bind((address, 0))
    with asking_for_any_port(port, port, family, reuse=reuse) as asking:
        asking.bind((address, 0))
        assert asking.getsockname()[1] == port


def test_a_held_port_is_not_given_to_an_outgoing_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, held_port() as port:
        with asking_for_any_port(port, port) as asking, pytest.raises(OSError, match="requested address"):
            asking.connect(server.getsockname())


def test_torch_and_the_engine_can_listen_on_a_held_port() -> None:
    with held_port() as port:
        assert is_port_available(port), "vLLM-Omni would choose another one"
        store = dist.TCPStore("localhost", port, world_size=1, is_master=True, wait_for_workers=False)
        assert store.port == port
    store.set("a", "1")
    assert store.get("a") == b"1"
