"""Fixtures of the tests of workers: ranks as processes, on the CPU and on accelerators."""

import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ml.workers.ranks import run_rank

RunRanks = Callable[..., list[Any]]
RANKS = (1, 2, 4)


@pytest.fixture(scope="module")
def run_ranks(tmp_path_factory: pytest.TempPathFactory) -> RunRanks:
    """Run `find(rank, ranks, folder, kind)` of a test file on each rank; what each rank found, in their order.

    The ranks are forked from a process that has imported everything. On accelerators each imports for itself, because
    torch refuses CUDA in forks of a process that asked for devices, as imports do.
    """
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload(["verl_omni.workers.actor.actor", "verl_omni.models.tiny", "peft"])

    def run(file: str, ranks: int, folder: Path, kind: str = "cpu") -> list[Any]:
        out = tmp_path_factory.mktemp(f"ranks-{ranks}")
        context: Any = forks if kind == "cpu" else multiprocessing.get_context("spawn")
        processes = [
            context.Process(target=run_rank, args=(file, rank, ranks, folder, out, kind)) for rank in range(ranks)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        assert [process.exitcode for process in processes] == [0] * ranks
        return [torch.load(out / f"found-{rank}.pt") for rank in range(ranks)]

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
        pytest.skip(f"{name}: each rank needs its own {self.kind} device")


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
