"""Weight transfer to another process: bandwidth as a share of a copy within one process.

    python benchmarks/weight_transfer.py [--repeats N] [--out FILE]

The receiver is a separate process that copies every tensor into existing memory, like a model that loads weights. The
baseline copies the same tensors within this process (`torch.Tensor.copy_`, one thread). Checking the digests is part of
the transfer. The upper bound is the sender alone, which packs the same tensors for a receiver that confirms
immediately. The variants take turns; the first turn is not counted.
"""

import contextlib
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from results import arguments, spread, table, write
from torch import Tensor

from verl_omni.weight_sync import ipc
from verl_omni.weight_sync.buckets import SHARED_MEMORY_BYTES, Bucket, Packer
from verl_omni.weight_sync.buffers import SendBuffer

MIB = 1 << 20
BUCKETS = (1, 64, 512)  # MiB
# MiB of distinct weights, and how many times an update sends them
SOURCE = 512
ROUNDS = 4
DEADLINE = 120.0


def layers(bucket: int) -> list[Tensor]:
    """Weights: matrices of 4 MiB, or a quarter of the bucket if that is smaller."""
    size = min(4 * MIB, bucket * MIB // 4)
    return list(torch.randn(SOURCE * MIB // 4).view(-1, size // 4).unbind())


def updates(weights: list[Tensor]) -> Iterator[tuple[str, Tensor]]:
    """The tensors of an update: the same memory under new names in each round."""
    for lap in range(ROUNDS):
        for index, tensor in enumerate(weights):
            yield f"{lap}.{index}", tensor


def receive_all(orders: Connection) -> None:
    """Main function of the other process: a transfer per handle it receives, until the handle is empty."""
    torch.set_num_threads(1)
    model: dict[str, Tensor] = {}

    def load(bucket: Bucket) -> None:
        for name, tensor in bucket:
            name_here = name.partition(".")[2]
            if name_here not in model or model[name_here].shape != tensor.shape:
                model[name_here] = torch.zeros_like(tensor)
            model[name_here].copy_(tensor)

    while handle := orders.recv():
        orders.send(len(ipc.receive(load, handle=handle, device=torch.device("cpu"), deadline=DEADLINE)))


def copy_seconds(weights: list[Tensor], targets: list[Tensor]) -> float:
    """Seconds of the baseline: an update copied within this process."""
    began = time.perf_counter()
    for _ in range(ROUNDS):
        for target, tensor in zip(targets, weights, strict=True):
            target.copy_(tensor)
    return time.perf_counter() - began


class InstantChannel:
    """Channel to a receiver that confirms immediately."""

    def send(self, message: Any) -> None:
        """Return immediately."""

    def wait_for_replies(self, pending: int) -> None:
        """Return immediately."""


def packing_seconds(weights: list[Tensor], bucket: int) -> float:
    """Seconds of the sender alone: copies, digests and messages of an update."""
    began = time.perf_counter()
    with contextlib.closing(SendBuffer(None)) as buffer:
        packer = Packer(buffer, InstantChannel(), bucket * MIB, SHARED_MEMORY_BYTES)
        for name, tensor in updates(weights):
            packer.add(name, tensor)
        packer.finish()
    return time.perf_counter() - began


def transfer_seconds(weights: list[Tensor], bucket: int, orders: Connection, handle: str) -> float:
    """Seconds of a transfer, from the first tensor to the last confirmation."""
    orders.send(handle)
    began = time.perf_counter()
    sent = ipc.send(updates(weights), handle=handle, bucket_bytes=bucket * MIB, device=None, deadline=DEADLINE)
    took = time.perf_counter() - began
    if orders.recv() != sent:
        raise RuntimeError("the receiver got another number of tensors than were sent")
    return took


def measure(orders: Connection, folder: Path, repeats: int) -> list[dict[str, Any]]:
    """A row per bucket size."""
    rows = []
    gib = SOURCE * ROUNDS / 1024
    for bucket in BUCKETS:
        weights = layers(bucket)
        targets = [torch.zeros_like(tensor) for tensor in weights]
        turns = []
        for number in range(repeats + 1):
            handle = f"ipc://{folder}/{bucket}-{number}.sock"
            copied = copy_seconds(weights, targets)
            packed = packing_seconds(weights, bucket)
            turns.append((copied, packed, transfer_seconds(weights, bucket, orders, handle)))
        counted = turns[1:]
        rows.append(
            {
                "bucket_mib": bucket,
                "total_mib": SOURCE * ROUNDS,
                "tensor_kib": weights[0].nbytes // 1024,
                **spread("share_of_memcpy", [copied / sent for copied, _, sent in counted]),
                **spread("sender_alone", [copied / packed for copied, packed, _ in counted]),
                **spread("gib_per_s", [gib / sent for _, _, sent in counted]),
                **spread("memcpy_gib_per_s", [gib / copied for copied, _, _ in counted]),
            }
        )
    return rows


def main() -> int:
    """Measure, write and print."""
    chosen = arguments(__doc__, "weight_transfer", repeats=7).parse_args()
    torch.set_num_threads(1)
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=receive_all, args=(theirs,), daemon=True)
    process.start()
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(ours, Path(folder), chosen.repeats)
    ours.send("")
    process.join()
    write(chosen.out, rows, threads=1, enough_mib=SHARED_MEMORY_BYTES // MIB)
    table(rows, ["bucket_mib", "gib_per_s", "memcpy_gib_per_s", "share_of_memcpy", "sender_alone"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
