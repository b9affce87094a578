"""Fixtures of the tests of workers: ranks as processes, on the CPU and on accelerators."""

from __future__ import annotations

import multiprocessing
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

RunRanks = Callable[..., Path]
RANKS = (1, 2, 4)


@pytest.fixture(scope="module")
def run_ranks(tmp_path_factory: pytest.TempPathFactory) -> RunRanks:
    """Run a test file once for each rank, with `RANK_OF_TEST`: (rank, ranks, input folder, output folder, *kind).

    The ranks are forked from a process that has imported everything. On accelerators each imports for itself, because
    torch refuses CUDA in forks of a process that asked for devices, as imports do. Returns the output folder.
    """
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload(["verl_omni.workers.actor.actor", "verl_omni.models.tiny", "peft"])

    def run(file: str, ranks: int, folder: Path, *kind: str) -> Path:
        out = tmp_path_factory.mktemp(f"ranks-{ranks}")
        context: Any = forks if kind in ((), ("cpu",)) else multiprocessing.get_context("spawn")
        started = []
        for rank in range(ranks):
            given = {"RANK_OF_TEST": (rank, ranks, str(folder), str(out), *kind)}
            started.append(context.Process(target=runpy.run_path, args=(file, given, "__main__")))
            started[-1].start()
        for process in started:
            process.join()
        assert [process.exitcode for process in started] == [0] * ranks
        return out

    return run


class FoundOnDevices(dict[str, Any]):
    """What ranks found, by the name of the case; a test skips a case that needs more devices than there are."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.ranks = tuple(n for n in RANKS if kind == "cpu" or n <= torch.get_device_module(kind).device_count())

    def __missing__(self, name: str) -> Any:
        if self.ranks == RANKS:
            raise KeyError(name)
        pytest.skip(f"{name}: each rank needs a {self.kind} device of its own")


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def found_on_devices(request: pytest.FixtureRequest) -> FoundOnDevices:
    """Empty, for each kind of device."""
    return FoundOnDevices(request.param)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Stable Diffusion 3, for reading only."""
    from verl_omni.pipelines.sd3.tiny_model import make_tiny_sd3

    folder = tmp_path_factory.mktemp("model") / "tiny"
    make_tiny_sd3(folder)
    return folder
