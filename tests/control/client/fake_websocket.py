"""The server's end of a WebSocket, as API servers speak it for exec and port-forward."""

import base64
import hashlib
import struct
from http.server import BaseHTTPRequestHandler
from typing import IO

MAGIC = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # of RFC 6455
CLOSE = 8


class FakeWebSocket:
    """A WebSocket on the connection of a request."""

    def __init__(self, handler: BaseHTTPRequestHandler, protocol: str = "v5.channel.k8s.io") -> None:
        digest = hashlib.sha1((handler.headers["Sec-WebSocket-Key"] + MAGIC).encode()).digest()
        handler.send_response(101)
        handler.send_header("Upgrade", "websocket")
        handler.send_header("Connection", "Upgrade")
        handler.send_header("Sec-WebSocket-Accept", base64.b64encode(digest).decode())
        handler.send_header("Sec-WebSocket-Protocol", protocol)
        handler.end_headers()
        handler.close_connection = True
        self._in: IO[bytes] = handler.rfile
        self._out = handler.wfile

    def send(self, channel: int, data: bytes) -> None:
        """Send a message on a channel."""
        payload = bytes([channel]) + data
        if len(payload) < 126:
            head = struct.pack("!BB", 0x82, len(payload))
        else:
            head = struct.pack("!BBQ", 0x82, 127, len(payload))
        self._out.write(head + payload)

    def close(self) -> None:
        """Send a close frame."""
        self._out.write(struct.pack("!BB", 0x80 | CLOSE, 0))

    def receive(self) -> tuple[int, bytes] | None:
        """The next message with its channel; None at the end."""
        head = self._in.read(2)
        if len(head) < 2 or head[0] & 0x0F == CLOSE:
            return None
        length = head[1] & 0x7F
        if length == 126:
            (length,) = struct.unpack("!H", self._in.read(2))
        elif length == 127:
            (length,) = struct.unpack("!Q", self._in.read(8))
        mask = self._in.read(4)
        data = self._in.read(length)
        plain = bytes(byte ^ mask[index % 4] for index, byte in enumerate(data))
        return plain[0], plain[1:]
