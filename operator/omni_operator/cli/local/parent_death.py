"""A wrapper program: runs a command that the kernel signals when its parent process dies.

    python -m omni_operator.cli.local.parent_death PARENT COMMAND [ARGUMENT...]

A separate program, because the child itself must call prctl before its command runs.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1
NOT_STARTED = 127


def wrap_command(command: Sequence[str]) -> list[str]:
    """The command line that runs `command` with this process as its parent."""
    return [sys.executable, "-m", __name__, str(os.getpid()), *command]


def main() -> None:
    """Ask the kernel for SIGINT when the parent dies, then run the command.

    The trainer answers SIGINT with a checkpoint; for SIGTERM, Ray installs a handler that exits at once.
    """
    parent = int(sys.argv[1])
    command = sys.argv[2:]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGINT, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        return  # the parent died before prctl was called
    try:
        os.execvp(command[0], command)
    except OSError:
        sys.exit(NOT_STARTED)


if __name__ == "__main__":
    main()
