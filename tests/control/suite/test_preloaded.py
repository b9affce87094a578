"""Files of tests that run in forks of one process, with the exit code, output and end of a process of their own."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from e2e.cluster import deadlines
from suite.preloaded import Preloaded

TESTS = Path(__file__).parents[2]
WITHIN_S = 60.0
# A module instead of torch and the engine, and without this project's pytest settings. That workers can be forked after
# the real imports is what every file on the engine needs.
# The process also starts a program, as an import may do.
CODE = (
    "import subprocess, sys; from suite import preloaded; preloaded.MODULES = ('tabnanny',); "
    "started = subprocess.Popen(['true']); sys.exit(preloaded.main())"
)
pytestmark = pytest.mark.slow
OPTIONS = ("-q", "-p", "no:cacheprovider", "-c", os.devnull)


@pytest.fixture
def preloaded() -> Iterator[Preloaded]:
    started = Preloaded((sys.executable, "-c", CODE))
    yield started
    started.close()


def runs(process: psutil.Process) -> bool:
    """Whether it has not ended; what has ended may wait for a parent that never asks for its exit code."""
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def file(folder: Path, name: str, body: str) -> str:
    path = folder / name
    path.write_text(f"def test_it():\n    {body}\n")
    return str(path)


def test_each_file_has_a_session_its_output_and_an_exit_code(preloaded: Preloaded, tmp_path: Path) -> None:
    body = "import os, sys; assert os.getsid(0) == os.getpid() != os.getppid() and 'tabnanny' in sys.modules"
    passing = file(tmp_path, "test_passing.py", body)
    failing = file(tmp_path, "test_failing.py", "print('seen'); assert False")
    forks = [
        preloaded.run_pytest([*OPTIONS, path], tmp_path / f"{number}.log")
        for number, path in enumerate((passing, failing))
    ]
    assert [fork.wait(WITHIN_S) for fork in forks] == [0, 1]
    assert [fork.poll() for fork in forks] == [0, 1]
    assert forks[0].pid != forks[1].pid
    logs = [(tmp_path / f"{number}.log").read_text() for number in range(2)]
    assert "1 passed" in logs[0]
    assert "seen" in logs[1] and "1 failed" in logs[1]


def test_forks_end_with_the_process(preloaded: Preloaded, tmp_path: Path) -> None:
    sleeping = file(tmp_path, "test_sleeping.py", "import time; time.sleep(600)")
    fork = preloaded.run_pytest([*OPTIONS, sleeping], tmp_path / "log")
    running = psutil.Process(fork.pid)
    running.parent().kill()
    assert fork.wait(WITHIN_S) == 1
    deadlines.wait_until("the fork to end", WITHIN_S, lambda: not runs(running))
