"""Run by Ray instead of Python: `python -S -E client.py NAME SCRIPT ARGUMENTS…` has the server run SCRIPT in a fork.

Only the standard library, and little of it: its start-up is what is being saved. Where there is no server any more,
this process becomes Python and runs the script itself.
"""

import array
import contextlib
import json
import os
import signal
import socket
import sys

PASSED_ON = (signal.SIGTERM, signal.SIGINT)


def main() -> int:
    """Returns the exit code of the fork."""
    name, arguments = sys.argv[1], sys.argv[2:]
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(f"\0{name}")
    except OSError:
        os.execv(sys.executable, [sys.executable, *arguments])
    # From here a signal waits until there is a fork to pass it on to.
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    request = json.dumps({"argv": arguments, "env": dict(os.environ), "cwd": os.getcwd()}).encode()
    standard = array.array("i", [0, 1, 2])
    try:
        connection.sendmsg([len(request).to_bytes(4, "big")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, standard)])
        connection.sendall(request)
        pid = int.from_bytes(connection.recv(4), "big")
    except OSError:
        pid = 0
    if not pid:
        print("no fork: the server refused or is gone", file=sys.stderr)
        return 1
    for number in PASSED_ON:
        signal.signal(number, lambda received, frame: _pass_on(pid, received))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
    status = connection.recv(1)  # nothing, if the server is gone; the fork ends when this process does
    return status[0] if status else 1


def _pass_on(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


if __name__ == "__main__":
    sys.exit(main())
