"""Fixtures of the tests of workers: ranks as processes."""

from __future__ import annotations

import multiprocessing
import runpy
from collections.abc import Callable
from pathlib import Path

import pytest

RunRanks = Callable[[str, int, Path], Path]


@pytest.fixture(scope="module")
def run_ranks(tmp_path_factory: pytest.TempPathFactory) -> RunRanks:
    """Run a test file once for each rank, with `RANK_OF_TEST`: (rank, ranks, input folder, output folder).

    The ranks are forked from a process that has imported everything. Returns the output folder.
    """
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["verl_omni.workers.actor.actor", "verl_omni.models.tiny", "peft"])

    def run(file: str, ranks: int, folder: Path) -> Path:
        out = tmp_path_factory.mktemp(f"ranks-{ranks}")
        started = []
        for rank in range(ranks):
            given = {"RANK_OF_TEST": (rank, ranks, str(folder), str(out))}
            started.append(server.Process(target=runpy.run_path, args=(file, given, "__main__")))
            started[-1].start()
        for process in started:
            process.join()
        assert [process.exitcode for process in started] == [0] * ranks
        return out

    return run


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Stable Diffusion 3, for reading only."""
    from verl_omni.models.tiny import make_tiny_sd3

    folder = tmp_path_factory.mktemp("model") / "tiny"
    make_tiny_sd3(folder)
    return folder
