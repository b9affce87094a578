"""One rank of a test on several: a process with a process group, in which a function of the test file runs."""

import runpy
from pathlib import Path

import torch


def run_rank(file: str, rank: int, ranks: int, folder: Path, out: Path, kind: str) -> None:
    """Call `find(rank, ranks, folder, kind)` of a test file, and write what it returns to `out`, by rank.

    Args:
        folder: input of the test.
        kind: of the device of each rank, `cpu` or `cuda`.
    """
    torch.set_num_threads(1)
    backend = "gloo" if kind == "cpu" else "nccl"
    torch.distributed.init_process_group(backend, init_method=f"file://{out}/store", rank=rank, world_size=ranks)
    results = runpy.run_path(file)["find"](rank, ranks, folder, kind)
    torch.save(results, out / f"found-{rank}.pt")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
