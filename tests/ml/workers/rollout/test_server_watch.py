"""A worker of an engine ends the engine's process when the server is killed; the processes are stand-ins."""

import multiprocessing
import os
import time
from typing import Any

import psutil
import pytest

from verl_omni.workers.rollout.vllm_rollout.judge.server_watch import ENGINE_PROCESS, end_engine_with_server

FORK = multiprocessing.get_context("fork")  # a new interpreter would not find this module
SOON = 30.0  # seconds


def serve(name: str, reports: Any) -> None:
    _run(FORK.Process(target=compute, args=(reports,), name=name))


def compute(reports: Any) -> None:
    _run(FORK.Process(target=work, args=(reports,)))


def work(reports: Any) -> None:
    engine = os.getppid()
    end_engine_with_server()
    reports.put((engine, os.getpid()))
    end = time.monotonic() + 2 * SOON
    while os.getppid() == engine and time.monotonic() < end:  # verl sets the signal of a parent's death
        time.sleep(0.05)


def _run(process: Any) -> None:
    process.start()
    process.join()


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def ends(pid: int, within: float) -> bool:
    end = time.monotonic() + within
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.05)
    return not alive(pid)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "watched"), [(ENGINE_PROCESS, True), ("another", False)])
def test_an_engine_ends_with_its_server_and_no_other_process_does(name: str, watched: bool) -> None:
    reports = FORK.Queue()
    server = FORK.Process(target=serve, args=(name, reports))
    server.start()
    engine, worker = reports.get(timeout=SOON)
    assert alive(engine) and alive(worker)
    server.kill()
    server.join()
    assert ends(engine, SOON if watched else 1.0) is watched
    if not watched:
        psutil.Process(engine).kill()
    assert ends(worker, SOON)
