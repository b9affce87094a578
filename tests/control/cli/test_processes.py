"""Processes that a run leaves behind are ended, however little time they get."""

import signal
import subprocess
import sys
import threading

import psutil
import pytest

from omni_operator.cli.local import processes

DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(60)"


def test_a_killed_process_may_take_a_moment_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """With `--patience 0` too: on a busy machine the kernel does not end a process at once."""
    send = psutil.Process.send_signal

    def late(process: psutil.Process, number: int) -> None:
        threading.Timer(0.3 if number == signal.SIGKILL else 0, send, (process, number)).start()

    monkeypatch.setattr(psutil.Process, "send_signal", late)
    with subprocess.Popen([sys.executable, "-c", DEAF], stdout=subprocess.PIPE) as deaf:
        deaf.stdout.readline()
        assert len(processes.terminate_descendants(grace=0)) == 1
        assert not psutil.pid_exists(deaf.pid)
