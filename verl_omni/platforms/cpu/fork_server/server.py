"""Fork server: forks a Ray worker per request. It is itself a fork of the driver, with the training stack imported."""

import array
import atexit
import contextlib
import gc
import json
import logging
import os
import random
import runpy
import selectors
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from verl_omni.platforms.cpu import process_tuning

logger = logging.getLogger(__name__)
POLL_SECONDS = 1.0  # between two checks for forks that have exited
READ_SECONDS = 5.0  # for a client to send its request, which it has when it connects
END_SECONDS = 10.0  # timeout for forks to exit with the driver's job


@dataclass(frozen=True)
class Request:
    """A client's request: run `argv[0]` as `__main__`, with `fds` as standard input, output and error."""

    argv: list[str]
    env: dict[str, str]
    cwd: str
    fds: tuple[int, int, int]


def run(listener: socket.socket, driver: int) -> NoReturn:
    """Serve requests until the driver exits; in a fork, run the requested script.

    Never returns and never raises: either would continue the driver's own work in a copy of the driver.

    Args:
        driver: reading end of a pipe that is closed when the driver exits.
    """
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver handles Ctrl-C
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        gc.collect()
        gc.freeze()  # otherwise a collection in a fork writes to every page, and copies it
        fork = _serve(listener, driver)
        if fork is None:
            code = 0
        else:
            _apply_request(*fork)
            script = fork[0].argv[0]
            code = run_program(lambda: runpy.run_path(script, run_name="__main__"))
    except BaseException:  # noqa: BLE001 - no exception may reach the driver's frames
        traceback.print_exc()
    finally:
        os._exit(code)  # skip the driver's exit handlers


def _serve(listener: socket.socket, driver: int) -> tuple[Request, socket.socket] | None:
    """Return, in a fork, its request and the connection to its client; in the server, None at its end."""
    clients: dict[int, socket.socket] = {}
    with selectors.DefaultSelector() as waiting:
        waiting.register(listener, selectors.EVENT_READ)
        waiting.register(driver, selectors.EVENT_READ)
        while True:
            ready = {key.fileobj for key, _ in waiting.select(POLL_SECONDS)}
            _report_exits(clients)
            if driver in ready:
                _wait_for_forks(clients)
                return None
            if listener not in ready:
                continue
            connection, _ = listener.accept()
            try:
                request = _read(connection)
            except (OSError, ValueError) as error:  # a client was killed while it sent
                logger.warning("dropped a malformed request for a Ray worker: %s", error)
                connection.close()
                continue
            try:
                pid = os.fork()
            except OSError as error:  # too many processes, or no memory: the forks that run are not to end for it
                logger.warning("no Ray worker was forked: %s", error)
                connection.close()
                _close_files(request)
                continue
            if pid == 0:
                os.close(driver)
                for inherited in (listener, *clients.values()):
                    inherited.close()
                return request, connection
            clients[pid] = connection
            _close_files(request)
            with contextlib.suppress(OSError):
                connection.sendall(pid.to_bytes(4, "big"))


def _close_files(request: Request) -> None:
    """Close this process's copies of a request's files."""
    for descriptor in request.fds:
        os.close(descriptor)


def _wait_for_forks(clients: dict[int, socket.socket]) -> None:
    """Wait until the forks have exited with the driver's job; kill the others, such as one stopped by SIGSTOP."""
    end = time.monotonic() + END_SECONDS
    while clients and time.monotonic() < end:
        _report_exits(clients)
        time.sleep(0.02)
    for pid in clients:
        logger.warning("killing Ray worker %d: it did not exit within %g s of its job", pid, END_SECONDS)
        os.kill(pid, signal.SIGKILL)  # a child that was not waited for: its pid cannot be reused
        os.waitpid(pid, 0)


def _report_exits(clients: dict[int, socket.socket]) -> None:
    """Send each client whose fork has exited the exit code."""
    while clients:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        code = os.waitstatus_to_exitcode(status)
        with clients.pop(pid) as connection, contextlib.suppress(OSError):
            connection.sendall(bytes([code if code >= 0 else 128 - code]))


def _read(connection: socket.socket) -> Request:
    """Receive a request.

    Raises:
        ValueError: it is malformed, or another user sent it. OSError: it did not arrive within `READ_SECONDS`.
    """
    connection.settimeout(READ_SECONDS)  # a client that is stopped must not stop the server
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    user = struct.unpack("3i", peer)[1]
    if user != os.getuid():
        raise ValueError(f"user id {user} sent it, and this server serves {os.getuid()}")
    header, ancillary, _, _ = connection.recvmsg(4, socket.CMSG_SPACE(3 * array.array("i").itemsize))
    if len(header) < 4 or not ancillary:
        raise ValueError("it has no header with three file descriptors")
    fds = array.array("i")
    fds.frombytes(ancillary[0][2])
    size = int.from_bytes(header, "big")
    body = b""
    while len(body) < size:
        part = connection.recv(size - len(body))
        if not part:
            raise ValueError(f"{len(body)} of {size} bytes arrived")
        body += part
    connection.settimeout(None)
    message: dict[str, Any] = json.loads(body)
    return Request(message["argv"], message["env"], message["cwd"], (fds[0], fds[1], fds[2]))


def _apply_request(request: Request, connection: socket.socket) -> None:
    """Give this process the files, variables, working directory and arguments of the request."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, descriptor in enumerate(request.fds):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(request.env)
    os.chdir(request.cwd)
    sys.argv = request.argv
    sys.path.insert(0, os.path.dirname(os.path.abspath(request.argv[0])))
    _reseed_rngs()
    process_tuning.keep_freed_memory()
    threading.Thread(target=_exit_with_client, args=(connection,), daemon=True, name="fork-client").start()


def run_program(program: Callable[[], object]) -> int:
    """Run a program, then Python's exit handlers. Returns its exit code."""
    try:
        program()
        return 0
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):  # a closed one
                stream.flush()


def _reseed_rngs() -> None:
    """Seed the RNGs of Python, NumPy and PyTorch, which all forks share otherwise."""
    import numpy as np
    import torch

    random.seed()
    np.random.seed(int.from_bytes(os.urandom(4), "big"))
    torch.manual_seed(int.from_bytes(os.urandom(8), "big") >> 1)


def _exit_with_client(connection: socket.socket) -> None:
    """Exit when the client does: Ray kills the client, whose pid it has."""
    with contextlib.suppress(OSError):
        connection.recv(1)
    os._exit(1)
