"""Program that Ray starts for each worker instead of Ray's `setup_worker.py`: `client.py SCRIPT ARGUMENTS...`.

It asks the fork server to run SCRIPT in a fork. It imports little, because its start-up time is the time to save. If
the server is gone, or the worker has another Python interpreter, Ray's program does the work.
"""

import array
import contextlib
import json
import os
import re
import signal
import socket
import sys

FORWARDED = (signal.SIGTERM, signal.SIGINT)
SERVER = "VERL_FORK_SERVER"  # variable with the name of the server's socket
# Arguments that Ray's program reads; it passes on the others.
ENVIRONMENT = "--serialized-runtime-env-context="
LANGUAGE = "--language="


def main() -> int:
    """Request a fork and wait for its end. Returns its exit code."""
    context = {}
    for argument in sys.argv:
        if argument.startswith(ENVIRONMENT):
            context = json.loads(argument.removeprefix(ENVIRONMENT))
    arguments = [argument for argument in sys.argv[1:] if not argument.startswith((ENVIRONMENT, LANGUAGE))]
    connection = socket.socket(socket.AF_UNIX)
    has_own_python = context.get("py_executable", sys.executable) != sys.executable
    if has_own_python or connection.connect_ex(f"\0{os.environ[SERVER]}") != 0:
        program = os.path.join(os.path.dirname(arguments[0]), "setup_worker.py")
        os.execv(sys.executable, [sys.executable, program, *sys.argv[1:]])
    for variable, value in context.get("env_vars", {}).items():  # as ray._private.utils.update_envs
        os.environ[variable] = re.sub(r"\$\{[A-Z0-9_]+\}", "", os.path.expandvars(value))
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
