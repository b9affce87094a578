"""The trainer as a child process that does not outlive this one."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def command(entrypoint: Sequence[str], arguments: Sequence[str]) -> list[str]:
    """The child's command line; `python3` means the Python that runs `drl`."""
    own = [sys.executable if word in ("python", "python3") else word for word in entrypoint]
    return [sys.executable, "-m", __name__, str(os.getpid()), *own, *arguments]


def start(
    entrypoint: Sequence[str], arguments: Sequence[str], *, log: Path, mark: dict[str, str]
) -> subprocess.Popen[bytes]:
    """Start the trainer in a session of its own, so that Ctrl-C reaches it only through us."""
    environment = {**DEFAULTS, **os.environ, **mark}
    with log.open("ab") as file:
        return subprocess.Popen(
            command(entrypoint, arguments), env=environment, stdin=subprocess.DEVNULL, stdout=file,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip


DEFAULTS = {
    "PYTHONUNBUFFERED": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
}


def main() -> None:
    """Ask the kernel to end us with our parent, then become the command. Run as a module, before any import."""
    parent, words = int(sys.argv[1]), sys.argv[2:]
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it died before we asked
        sys.exit(1)
    try:
        os.execvp(words[0], words)
    except OSError as error:
        sys.exit(f"cannot start {words[0]}: {error.strerror}")


if __name__ == "__main__":
    main()
