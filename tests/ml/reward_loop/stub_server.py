"""A reward server or judge that answers from a list."""

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

CUT = {"X-Cut": "1"}  # the connection ends in the middle of the answer


class Server(ThreadingHTTPServer):
    """Answers from a list, and keeps what it was sent."""

    # Each: status, body and perhaps headers (CUT sends only half of the body), or a function of the request's body.
    answers: list[Any]
    received: list[Any]  # parsed JSON, or the bytes of another body
    paths: list[str]
    keys: list[str | None]
    connections: int

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"


Serve = Callable[..., Server]


class Answer(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"  # connections stay open
    timeout = 60  # of an idle connection, so that its thread ends

    def setup(self) -> None:
        super().setup()
        self.server.connections += 1

    def do_POST(self) -> None:
        sent = self.rfile.read(int(self.headers["Content-Length"]))
        is_json = self.headers.get("Content-Type") == "application/json"
        received = json.loads(sent) if is_json else sent
        self.server.received.append(received)
        self.server.paths.append(self.path)
        self.server.keys.append(self.headers["Authorization"])
        answer = self.server.answers[0]
        status, body, *more = answer(received) if callable(answer) else self.server.answers.pop(0)
        content = body.encode() if isinstance(body, str) else body
        headers = {"Content-Length": str(len(content)), **(more[0] if more else {})}
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        cut = headers.get("X-Cut") is not None
        self.wfile.write(content[: len(content) // 2 if cut else None])
        self.close_connection = cut

    def log_message(self, *args: Any) -> None:
        """The test's output stays clean."""


def start(*answers: Any) -> tuple[Server, threading.Thread]:
    """A server in a thread; call `stop` at the end."""
    server = Server(("127.0.0.1", 0), Answer)
    server.answers = list(answers)
    server.received = []
    server.paths = []
    server.keys = []
    server.connections = 0
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    return server, thread


def stop(server: Server, thread: threading.Thread) -> None:
    server.shutdown()
    thread.join()
    server.server_close()
