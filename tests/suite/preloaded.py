"""A process that imports torch and the engine, and forks itself for each stage of tests that need them.

`python -m suite.preloaded` reads a line of JSON for each stage from standard input, `{"arguments": [...],
"log": PATH}`, and runs pytest with these arguments in a fork. It answers on standard output, a line each: the number of
the request with the fork's `pid`, and with its exit `code` when it has ended. It ends with its standard input.

Nothing that it imports loads Ray: a process that has loaded Ray cannot fork its workers (docs/adr/0007). It is for
machines without an accelerator, whose context does not survive a fork.
"""

import importlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

# diffusers imports its parts when they are first used; all models come with the autoencoders.
MODULES = ("torch", "transformers", "diffusers.models.autoencoders", "peft", "vllm", "vllm_omni", "pytest")
POLL_S = 0.1


class Fork:
    """A fork that runs pytest, with the methods of `subprocess.Popen` that the runner calls."""

    def __init__(self) -> None:
        self._started = threading.Event()
        self._ended = threading.Event()
        self._pid = 0
        self._code: int | None = None

    @property
    def pid(self) -> int:
        """The process id, once the imports are done.

        Raises:
            ProcessLookupError: the process that forks has ended before.
        """
        self._started.wait()
        if not self._pid:
            raise ProcessLookupError("the process that imports for the engine's tests has ended")
        return self._pid

    @property
    def has_started(self) -> bool:
        """Whether it has a process id."""
        return self._started.is_set() and self._pid != 0

    def take(self, reply: Mapping[str, int]) -> None:
        """Take a reply of the process about this fork."""
        if "pid" in reply:
            self._pid = reply["pid"]
            self._started.set()
        else:
            self.end(reply["code"])

    def end(self, code: int) -> None:
        """Set the exit code, if there is none yet."""
        if self._code is None:
            self._code = code
        self._started.set()
        self._ended.set()

    def poll(self) -> int | None:
        """The exit code; None: it runs."""
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, when it has ended.

        Raises:
            subprocess.TimeoutExpired: it still runs after `timeout` seconds.
        """
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired("pytest", timeout or 0)
        return self._code or 0


class Preloaded:
    """The process that forks. It starts with the first request; the forks of one that ends have failed.

    Args:
        command: starts it.
    """

    def __init__(self, command: Sequence[str] = (sys.executable, "-m", "suite.preloaded")) -> None:
        self._command = command
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._forks: list[Fork] = []

    def run_pytest(self, arguments: Sequence[str], log: Path) -> Fork:
        """Start pytest in a fork with its own session, and write its output to a file."""
        fork = Fork()
        with self._lock:
            if self._process is None:
                self._start()
            assert self._process is not None and self._process.stdin is not None
            self._forks.append(fork)
            with suppress(BrokenPipeError):  # it has ended, which `_read` tells all forks
                self._process.stdin.write(json.dumps({"arguments": list(arguments), "log": str(log)}) + "\n")
                self._process.stdin.flush()
        return fork

    def interrupt(self) -> None:
        """End the process if it has forked nothing yet, because it still imports: all forks have failed then."""
        with self._lock:
            if self._process is not None and not any(fork.has_started for fork in self._forks):
                self._process.kill()

    def close(self) -> None:
        """End the process; its forks go on."""
        with self._lock:
            process = self._process
            if process is None or process.stdin is None:
                return
            with suppress(BrokenPipeError):
                process.stdin.close()
        process.wait()

    def _start(self) -> None:
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": f".{os.pathsep}tests"},
        )
        self._forks = []
        threading.Thread(target=self._read, args=(self._process, self._forks), daemon=True).start()

    def _read(self, process: subprocess.Popen[str], forks: list[Fork]) -> None:
        assert process.stdout is not None  # a pipe
        for line in process.stdout:
            reply: dict[str, int] = json.loads(line)
            forks[reply["number"]].take(reply)
        process.wait()
        with self._lock:
            self._process = None
            for fork in forks:
                if fork.poll() is None and fork.has_started:
                    # No other process waits for it. It may not have its own group yet.
                    for kill in (os.killpg, os.kill):
                        with suppress(ProcessLookupError):
                            kill(fork.pid, signal.SIGKILL)
                fork.end(1)


@contextmanager
def held_output() -> Iterator[None]:
    """Show what this process prints meanwhile only if it fails: libraries log when they are imported."""
    kept = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 1)
        os.dup2(held.fileno(), 2)
        try:
            yield
        except BaseException:
            sys.stdout.flush()
            held.seek(0)
            os.write(kept, held.read())
            raise
        finally:
            sys.stdout.flush()
            os.dup2(kept, 1)
            os.dup2(kept, 2)
            os.close(kept)


def serve(replies: int) -> dict[str, Any] | None:
    """Import, then fork for each request. Returns the request in a fork, and None in the process itself at its end.

    Args:
        replies: file descriptor that the replies are written to.
    """
    with held_output():
        for name in MODULES:
            importlib.import_module(name)
    running: dict[int, int] = {}
    number = 0

    def reply(**values: int) -> None:
        os.write(replies, json.dumps(values).encode() + b"\n")

    while True:
        while running:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            if pid in running:  # not a program that an import has started
                reply(number=running.pop(pid), code=os.waitstatus_to_exitcode(status))
        if not select.select([0], [], [], POLL_S)[0]:
            continue
        line = read_line(0)
        if not line:
            return None
        pid = os.fork()
        if pid == 0:
            os.close(replies)
            return dict(json.loads(line))
        running[pid] = number
        reply(number=number, pid=pid)
        number += 1


def read_line(descriptor: int) -> bytes:
    """A line, byte by byte, so that `select` sees the next one; empty at the end."""
    line = b""
    while not line.endswith(b"\n") and (byte := os.read(descriptor, 1)):
        line += byte
    return line


def become(request: Mapping[str, Any]) -> None:
    """Give this fork a session, the files and the arguments of a pytest that was started by itself."""
    os.setsid()
    files = [os.open(os.devnull, os.O_RDONLY), os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)]
    for number, descriptor in enumerate([*files, files[1]]):
        os.dup2(descriptor, number)
    for descriptor in files:
        os.close(descriptor)
    # Among what is imported are plugins of pytest, whose own assertions need no details.
    sys.argv = ["pytest", "-W", "ignore::pytest.PytestAssertRewriteWarning", *request["arguments"]]


def main() -> int:
    """Serve; in a fork, run pytest. Returns the exit code."""
    replies = os.dup(1)
    os.dup2(2, 1)  # what is printed is no reply
    request = serve(replies)
    if request is None:
        return 0
    become(request)
    import pytest

    return int(pytest.main())


if __name__ == "__main__":
    sys.exit(main())
