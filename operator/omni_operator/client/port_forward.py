"""A local port whose connections go to a port of a pod."""

import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from omni_operator.cluster.errors import ClusterError

from .connection import Connection
from .websockets import open_port

CHUNK_BYTES = 64 * 1024
LOOPBACK = "127.0.0.1"


class PortForwarder:
    """Forwards while it is open; use it in a `with`. Each local connection has a separate WebSocket.

    Args:
        local_port: 0: any free one.
        report: called with the error of a connection that failed.

    Raises:
        OSError: another process has the local port.
    """

    def __init__(
        self,
        connection: Connection,
        namespace: str,
        pod: str,
        port: int,
        local_port: int,
        report: Callable[[str], None],
    ) -> None:
        self._connection = connection
        self._target = (namespace, pod, port)
        self._report = report
        self._listener = socket.create_server((LOOPBACK, local_port))
        self._thread = threading.Thread(target=self._accept, daemon=True, name=f"port-forward to {pod}")

    @property
    def url(self) -> str:
        """Address of the local port."""
        return f"http://{LOOPBACK}:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()
        self._thread.join()

    def _accept(self) -> None:
        while True:
            try:
                local, _ = self._listener.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._forward, args=(local,), daemon=True).start()

    def _forward(self, local: socket.socket) -> None:
        namespace, pod, port = self._target
        with local:
            try:
                remote = open_port(self._connection, namespace, pod, port)
            except ClusterError as error:
                self._report(str(error))
                return
            far = remote.socket(port)
            back = threading.Thread(target=_copy, args=(far, local), daemon=True)
            back.start()
            _copy(local, far)
            far.close()
            back.join()
            if error_text := remote.error(port):
                self._report(f"pod {pod}, port {port}: {error_text.strip()}")


def _copy(source: Any, target: Any) -> None:
    """Copy until one side closes, and then close the other direction."""
    try:
        while data := source.recv(CHUNK_BYTES):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        # One side is closed: so is the other, which ends the opposite direction too.
        for end in (source, target):
            _shut(end)


def _shut(end: Any) -> None:
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:
        return
