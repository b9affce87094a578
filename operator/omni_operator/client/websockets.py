"""Exec and port-forward over WebSockets, through the official kubernetes package."""

import json
import time
from collections.abc import Sequence
from typing import Any

from kubernetes.client import ApiException
from kubernetes.stream.ws_client import ERROR_CHANNEL, STDERR_CHANNEL, STDOUT_CHANNEL, portforward_call, websocket_call
from websocket import WebSocketBadStatusException, WebSocketException

from omni_operator.cluster.errors import ClusterError, Unavailable, error_of
from omni_operator.cluster.kinds import PODS

from .connection import Connection

SILENCE_SECONDS = 120.0
STDERR_LIMIT = 4096


class CommandFailed(ClusterError):
    """A command in a pod failed; the message has the end of its error output."""


class CommandOutput:
    """Standard output of a command in a pod, as a file for reading."""

    def __init__(
        self, connection: Connection, namespace: str, pod: str, container: str, command: Sequence[str]
    ) -> None:
        self._what = f"exec in pod {pod}"
        query = [
            ("container", container),
            ("stdout", "true"),
            ("stderr", "true"),
            *(("command", word) for word in command),
        ]
        url, headers = _request(connection, PODS.path(namespace, pod, "exec"), query)
        self._socket = _opened(
            self._what, websocket_call, connection, url, headers, _preload_content=False, binary=True, capture_all=False
        )
        self._rest = b""
        self._errors = b""

    def read(self, size: int) -> bytes:
        """The next bytes, fewer than `size` only at the end.

        Raises:
            Unavailable: nothing arrives for two minutes, or the connection breaks.
        """
        parts = [self._rest]
        missing = size - len(self._rest)
        while missing > 0 and (part := self._receive()):
            parts.append(part)
            missing -= len(part)
        data = b"".join(parts)
        self._rest = data[size:]
        return data[:size]

    def finish(self) -> None:
        """Read to the end.

        Raises:
            CommandFailed: the command failed.
            Unavailable: the connection broke before its end.
        """
        while self._receive():
            pass
        try:
            answer = json.loads(self._socket.read_channel(ERROR_CHANNEL) or b"null")
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise Unavailable(f"{self._what}: the connection broke")
        if answer.get("status") != "Success":
            errors = self._errors.decode("utf-8", "replace").strip()
            raise CommandFailed(f"{self._what}: {errors or answer.get('message')}")

    def close(self) -> None:
        """Close the connection; the command ends when it writes again."""
        self._socket.close()

    def _receive(self) -> bytes:
        end = time.monotonic() + SILENCE_SECONDS
        try:
            while True:
                data: bytes = self._socket.read_channel(STDOUT_CHANNEL, timeout=1)
                errors: bytes = self._socket.read_channel(STDERR_CHANNEL)
                self._errors = (self._errors + errors)[-STDERR_LIMIT:]
                if data or not self._socket.is_open():
                    return data
                if errors:
                    end = time.monotonic() + SILENCE_SECONDS
                if time.monotonic() > end:
                    raise Unavailable(f"{self._what}: no output for {SILENCE_SECONDS:g} s")
        except (WebSocketException, OSError) as error:
            raise Unavailable(f"{self._what}: the connection broke: {error}") from error


def open_port(connection: Connection, namespace: str, pod: str, port: int) -> Any:
    """A connection to a port of a pod: a `PortForward` of the kubernetes package with one socket."""
    url, headers = _request(connection, PODS.path(namespace, pod, "portforward"), [("ports", str(port))])
    return _opened(f"port-forward to pod {pod}", portforward_call, connection, url, headers)


def _request(connection: Connection, path: str, query: Sequence[tuple[str, str]]) -> tuple[str, dict[str, str]]:
    _, url, headers, *_ = connection.prepare("GET", path, query, {})
    return url, {name.lower(): value for name, value in headers.items()}


def _opened(what: str, call: Any, connection: Connection, url: str, headers: dict[str, str], **options: Any) -> Any:
    try:
        return call(connection.client.configuration, "GET", url, headers=headers, **options)
    except ApiException as error:
        cause = error.__context__
        if isinstance(cause, KeyboardInterrupt | SystemExit):  # the package reports these as an ApiException too
            raise cause from None
        if not isinstance(cause, WebSocketBadStatusException):
            raise Unavailable(f"no answer from the cluster: {what}: {cause or error}") from error
        try:
            answer = json.loads(cause.resp_body or b"{}")
        except ValueError:
            answer = {}
        raise error_of(cause.status_code, answer if isinstance(answer, dict) else {}, what) from error
