"""Program that Ray starts for each worker: `python -S -E client.py NAME SCRIPT ARGUMENTS...`.

It asks the fork server to run SCRIPT in a fork. It imports little, because its start-up time is the time to save. If
the server is gone, it executes Python on the script itself.
"""

import array
import contextlib
import json
import os
import signal
import socket
import sys

FORWARDED = (signal.SIGTERM, signal.SIGINT)


def main() -> int:
    """Request a fork and wait for its end. Returns its exit code."""
    name = sys.argv[1]
    arguments = sys.argv[2:]
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(f"\0{name}")
    except OSError:
        os.execv(sys.executable, [sys.executable, *arguments])
    # From here on, signals stay pending until there is a fork to forward them to.
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    request = json.dumps({"argv": arguments, "env": dict(os.environ), "cwd": os.getcwd()}).encode()
    standard = array.array("i", [0, 1, 2])
    try:
        connection.sendmsg([len(request).to_bytes(4, "big")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, standard)])
        connection.sendall(request)
        pid = int.from_bytes(connection.recv(4), "big")
    except OSError:
        pid = 0
    if not pid:
        print("no Ray worker was forked: the fork server refused the request or has exited", file=sys.stderr)
        return 1
    for number in FORWARDED:
        signal.signal(number, lambda received, frame: _forward_signal(pid, received))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    status = connection.recv(1)  # empty if the server is gone; the fork exits when this process does
    return status[0] if status else 1


def _forward_signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


if __name__ == "__main__":
    sys.exit(main())
