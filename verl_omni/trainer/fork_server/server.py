"""Fork a Ray worker for each request. Runs in a fork of the driver, which has imported what the workers need."""

from __future__ import annotations

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
from dataclasses import dataclass
from typing import Any, NoReturn

logger = logging.getLogger(__name__)
LOOK_SECONDS = 1.0  # how often ended forks are looked for
END_SECONDS = 10.0  # for forks to end with the driver's job


@dataclass(frozen=True)
class Request:
    """What a client asks for: run `argv[0]` as `__main__` with its standard files `fds`."""

    argv: list[str]
    env: dict[str, str]
    cwd: str
    fds: tuple[int, int, int]


def run(listener: socket.socket, driver: int) -> NoReturn:
    """Serve, and end this process with the driver; in a fork, be what was asked for.

    Never returns and never raises: both would go on with the driver's own work, in a copy of it.

    Args:
        driver: the reading end of a pipe that is closed when the driver ends.
    """
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's to handle
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        gc.collect()
        gc.freeze()  # so that a collection in a fork does not write to, and so copy, every page
        fork = _serve(listener, driver)
        if fork is None:
            code = 0
        else:
            _become(*fork)
            code = _run_script(fork[0].argv[0])
    except BaseException:  # noqa: BLE001 - whatever it is, it must not reach the driver's frames
        traceback.print_exc()
    finally:
        os._exit(code)  # what the driver has registered for its exit is not for here


def _serve(listener: socket.socket, driver: int) -> tuple[Request, socket.socket] | None:
    """In a fork, returns its request and the connection to its client; None in the server, at the end."""
    clients: dict[int, socket.socket] = {}
    with selectors.DefaultSelector() as waiting:
        waiting.register(listener, selectors.EVENT_READ)
        waiting.register(driver, selectors.EVENT_READ)
        while True:
            ready = {key.fileobj for key, _ in waiting.select(LOOK_SECONDS)}
            _tell_ended(clients)
            if driver in ready:
                _outlive(clients)
                return None
            if listener not in ready:
                continue
            connection, _ = listener.accept()
            try:
                request = _read(connection)
            except (OSError, ValueError) as error:  # a client that was killed while it asked
                logger.warning("a worker's request was dropped: %s", error)
                connection.close()
                continue
            pid = os.fork()
            if pid == 0:
                os.close(driver)
                for other in (listener, *clients.values()):
                    other.close()
                return request, connection
            clients[pid] = connection
            for descriptor in request.fds:
                os.close(descriptor)
            with contextlib.suppress(OSError):
                connection.sendall(pid.to_bytes(4, "big"))


def _outlive(clients: dict[int, socket.socket]) -> None:
    """Wait until the forks have ended with the driver's job; kill those that do not: one that is stopped cannot."""
    end = time.monotonic() + END_SECONDS
    while clients and time.monotonic() < end:
        _tell_ended(clients)
        time.sleep(0.02)
    for pid in clients:
        logger.warning("the worker in process %d did not end with its job, and is killed", pid)
        os.kill(pid, signal.SIGKILL)  # ours, and not waited for: nobody else can have this number
        os.waitpid(pid, 0)


def _tell_ended(clients: dict[int, socket.socket]) -> None:
    """Tell each client whose fork has ended how."""
    while clients:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        code = os.waitstatus_to_exitcode(status)
        with clients.pop(pid) as connection, contextlib.suppress(OSError):
            connection.sendall(bytes([code if code >= 0 else 128 - code]))


def _read(connection: socket.socket) -> Request:
    """Raises ValueError for a request of another user, or one that is cut off."""
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    user = struct.unpack("3i", peer)[1]
    if user != os.getuid():
        raise ValueError(f"user {user} may not start workers here")
    header, ancillary, _, _ = connection.recvmsg(4, socket.CMSG_SPACE(3 * array.array("i").itemsize))
    if len(header) < 4 or not ancillary:
        raise ValueError("no header")
    fds = array.array("i")
    fds.frombytes(ancillary[0][2])
    size, body = int.from_bytes(header, "big"), b""
    while len(body) < size:
        part = connection.recv(size - len(body))
        if not part:
            raise ValueError("it ended early")
        body += part
    found: dict[str, Any] = json.loads(body)
    return Request(found["argv"], found["env"], found["cwd"], (fds[0], fds[1], fds[2]))


def _become(request: Request, connection: socket.socket) -> None:
    """Take the request's files, variables, folder and arguments for this process's own."""
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
    _own_chance()
    threading.Thread(target=_end_with, args=(connection,), daemon=True, name="fork-client").start()


def _run_script(script: str) -> int:
    """Run the script as `__main__` to its end, with what Python does then. Returns its exit code."""
    try:
        runpy.run_path(script, run_name="__main__")
        return 0
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):  # a closed one
                stream.flush()


def _own_chance() -> None:
    """Each fork draws its own random numbers."""
    import numpy as np
    import torch

    random.seed()
    np.random.seed(int.from_bytes(os.urandom(4), "big"))
    torch.manual_seed(int.from_bytes(os.urandom(8), "big") >> 1)


def _end_with(connection: socket.socket) -> None:
    """Ray knows the client: when it kills that, the fork must go too."""
    with contextlib.suppress(OSError):
        connection.recv(1)
    os._exit(1)
