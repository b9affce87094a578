"""The two ends of a weight transfer are processes of one user: anyone may put a socket into /tmp, or connect to one."""

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from verl_omni.weight_sync import ipc
from verl_omni.weight_sync.errors import IncompleteUpdate
from verl_omni.weight_sync.messages import BufferMessage, encode_message

OTHER_USER = 65534
DEADLINE = 30.0
CPU = torch.device("cpu")
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of another user")
# Says that it is ready, then sends what it reads from standard input to the process that connects.
LISTEN = f"""
import os, socket, sys
os.setuid({OTHER_USER}); os.umask(0)
with socket.socket(socket.AF_UNIX) as listening:
    listening.bind(sys.argv[1]); listening.listen(1); print("ready", flush=True)
    connection, _ = listening.accept()
    connection.sendall(sys.stdin.buffer.read()); connection.recv(1)
"""
CONNECT = f"""
import os, socket, sys, time
os.setuid({OTHER_USER})
with socket.socket(socket.AF_UNIX) as connection:
    while connection.connect_ex(sys.argv[1]):
        time.sleep(0.01)
    connection.recv(1)
"""


class RunsCode:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., None], tuple[str]]:
        return os.mkdir, (str(self.path),)


def refuse(transferred: Callable[[], object]) -> None:
    with pytest.raises(IncompleteUpdate, match=rf"is a process of user id {OTHER_USER}, and this one is of 0"):
        transferred()


@pytest.fixture
def path() -> Iterator[Path]:
    """Path of a socket, in a folder like /tmp."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o1777)
        yield Path(folder, "weights.sock")


def test_a_receiver_reads_nothing_from_another_user(path: Path, tmp_path: Path) -> None:
    handle = pickle.dumps((print, (RunsCode(tmp_path / "made"),)))
    content = encode_message(BufferMessage(16, device_handle=handle))
    command = [sys.executable, "-S", "-c", LISTEN, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as sender:
        assert sender.stdin is not None and sender.stdout is not None
        assert sender.stdout.readline() == b"ready\n"
        sender.stdin.write(content)
        sender.stdin.close()
        refuse(lambda: ipc.receive(print, handle=f"ipc://{path}", device=CPU, deadline=DEADLINE))
    assert not (tmp_path / "made").exists()
    pickle.loads(handle)
    assert (tmp_path / "made").exists()  # the harm is real


def test_a_sender_sends_nothing_to_another_user(path: Path) -> None:
    weights = iter([("a", torch.ones(1))])
    before = os.umask(0)
    try:
        with subprocess.Popen([sys.executable, "-S", "-c", CONNECT, str(path)]):
            refuse(
                lambda: ipc.send(weights, handle=f"ipc://{path}", bucket_bytes=1 << 20, device=None, deadline=DEADLINE)
            )
    finally:
        os.umask(before)
    assert next(weights)[0] == "a"
