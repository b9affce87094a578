"""Python programs in forks of the test's process, which imports torch and the engine once for all of them.

These imports are half of the work of a short training. `test_whole_job.py` and `test_own_family.py` run real commands.
"""

import atexit
import contextlib
import importlib
import logging
import os
import random
import runpy
import signal
import subprocess
import sys
import traceback
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from typing_extensions import override

from suite.preloaded import MODULES
from verl_omni.platforms.cpu.fork_server.server import run_program
from verl_omni.trainer import startup


def start(command: Sequence[str], **options: Any) -> subprocess.Popen[str]:
    """Start `[sys.executable, "-m", MODULE, ...]` or `[sys.executable, SCRIPT, ...]`, in a fork if that is possible.

    Args:
        options: arguments of `subprocess.Popen`: `stdout`, `stderr`, `text` and `env`.
    """
    # The context of an accelerator does not survive a fork.
    kind = subprocess.Popen if startup.accelerator_present() else ForkedProgram
    return kind(command, **options)


def run(command: Sequence[str], timeout: float) -> tuple[int, str]:
    """Run a program to its end, or kill it. Returns its exit code and its output.

    Raises:
        subprocess.TimeoutExpired: it ran for `timeout` seconds.
    """
    with start(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            output, _ = process.communicate(timeout=timeout)
        finally:
            process.kill()
    return process.returncode, output


class ForkedProgram(subprocess.Popen[str]):
    """A `subprocess.Popen` that forks this process and runs the program as `__main__` in the fork."""

    @override
    def _execute_child(
        self,
        args: Any,
        executable: Any,
        preexec_fn: Any,
        close_fds: Any,
        pass_fds: Any,
        cwd: Any,
        env: Any,
        startupinfo: Any,
        creationflags: Any,
        shell: Any,
        p2cread: int,
        p2cwrite: int,
        c2pread: int,
        c2pwrite: int,
        errread: int,
        errwrite: int,
        *others: Any,
    ) -> None:  # type: ignore[override]
        # CPython 3.11 and 3.12 have this signature.
        with contextlib.redirect_stdout(sys.stderr):  # libraries print when they are imported
            for name in MODULES:
                importlib.import_module(name)
        assert "ray" not in sys.modules, "the program could not fork its workers (docs/adr/0007)"
        self.pid = os.fork()
        if self.pid == 0:
            _run_in_this_fork(args, env, {1: c2pwrite, 2: errwrite})
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)


def _run_in_this_fork(command: Sequence[str], env: Mapping[str, str] | None, files: Mapping[int, int]) -> NoReturn:
    """Run the program without what pytest has set in this process, and exit as Python does.

    Args:
        files: by descriptor the one that takes its place; -1: none.
    """
    code = 1
    try:
        for number, descriptor in files.items():
            if descriptor != -1:
                os.dup2(descriptor, number)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))
        if env is not None:
            os.environ.clear()
            os.environ.update(env)
        atexit._clear()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        logging.getLogger().handlers.clear()
        warnings.simplefilter("default")
        random.seed()
        code = run_program(lambda: _run_as_main(command[1:]))
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _run_as_main(arguments: Sequence[str]) -> None:
    """Run `-m MODULE ...` or `SCRIPT ...`."""
    if arguments[0] == "-m":
        sys.argv = list(arguments[1:])
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(arguments)
        sys.path.insert(0, os.path.dirname(arguments[0]))
        runpy.run_path(arguments[0], run_name="__main__")
