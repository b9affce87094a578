"""Weight update over the network to several receivers: bandwidth as a share of one socket's.

    python benchmarks/fan_out.py [--repeats N] [--out FILE]

One sender, rank 0 of a trainer, sends the same update to 1, 2, 4 and 8 receivers, each in a separate process, over
the loopback interface: with handshake, digests of every tensor, and confirmations. The baseline, in the same turn, is
one TCP connection without any of this: the same number of bytes as one receiver gets, sent from one buffer into
another, both allocated before. The variants take turns; the first turn is not counted. The CPU time of all processes
for a received byte, relative to the baseline, does not depend on other work on the machine.
"""

import asyncio
import contextlib
import multiprocessing
import os
import socket
import sys
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch
from results import arguments, spread, table, write
from torch import Tensor
from weight_transfer import MIB, ROUNDS, updates

from verl_omni.weight_sync.buckets import PREFERRED_BYTES
from verl_omni.weight_sync.messages import HeaderMessage, StreamAddress
from verl_omni.weight_sync.tcp_receiver import StreamReceiver
from verl_omni.weight_sync.tcp_sender import StreamSender

HOST = "127.0.0.1"
KEY = b"a token"
RECEIVERS = (1, 2, 4, 8)
SOURCE = 128  # MiB of distinct weights, which an update sends `ROUNDS` times
# bytes; the limit of a bucket is the default of the trainer
TENSOR = 4 * MIB
BUCKET = 64 * MIB
BUFFER = PREFERRED_BYTES  # of the baseline, as large as a bucket: one that leaves the CPU's cache is slower
DEADLINE = 120.0


def work(orders: Connection) -> None:
    """Main function of a receiver: a transfer for each order, answered with its end and CPU seconds, until None."""
    torch.set_num_threads(1)
    buffer = bytearray(BUFFER)
    while order := orders.recv():
        began = time.process_time()
        if isinstance(order, int):
            receive_raw(order, memoryview(buffer))
        else:
            receive_update(*order)
        orders.send((time.monotonic(), time.process_time() - began))


def receive_raw(port: int, buffer: memoryview) -> None:
    """Read the baseline's connection to its end, over and over into one buffer."""
    with socket.create_connection((HOST, port)) as connection:
        position = 0
        while count := connection.recv_into(buffer[position:]):
            position = (position + count) % len(buffer)


def receive_update(address: StreamAddress, number: int) -> None:
    """Receive an update, checked, and drop its tensors: what an engine does with them is another benchmark."""
    incoming = StreamReceiver(address, number, KEY, DEADLINE)
    incoming.connect()
    with contextlib.closing(incoming):
        for _ in incoming.weights():
            pass
        incoming.confirm()


@dataclass(frozen=True, slots=True)
class Transfer:
    """Seconds until each receiver had everything, and CPU seconds of sender and receivers together."""

    seconds: list[float]
    cpu: float


def send_raw(content: memoryview, receiver: Connection) -> Transfer:
    """Send an update's bytes over one connection."""
    used = time.process_time()
    with socket.create_server((HOST, 0)) as listener:
        receiver.send(listener.getsockname()[1])
        connection, _ = listener.accept()
        began = time.monotonic()
        with connection:
            for _ in range(SOURCE * MIB * ROUNDS // len(content)):
                connection.sendall(content)
        ended, theirs = receiver.recv()
    return Transfer([ended - began], theirs + time.process_time() - used)


def send_update(weights: list[Tensor], receivers: list[Connection]) -> Transfer:
    """Send an update to all receivers."""
    stream = StreamSender(HOST, KEY, DEADLINE)
    used = time.process_time()
    began = time.monotonic()
    for number, receiver in enumerate(receivers):
        receiver.send((stream.address, number))
    failed = asyncio.run(stream.send(updates(weights), HeaderMessage(1, None), len(receivers), BUCKET))
    if failed:
        raise RuntimeError(f"an update failed: {failed}")
    answers = [receiver.recv() for receiver in receivers]
    cpu = time.process_time() - used + sum(theirs for _, theirs in answers)
    return Transfer([ended - began for ended, _ in answers], cpu)


def measure(receivers: list[Connection], repeats: int) -> list[dict[str, Any]]:
    """A row per number of receivers."""
    weights = list(torch.randn(SOURCE * MIB // 4).view(-1, TENSOR // 4).unbind())
    content = memoryview(bytearray(BUFFER))
    gib = SOURCE * ROUNDS / 1024
    turns: dict[int, list[tuple[Transfer, Transfer]]] = {count: [] for count in RECEIVERS}
    for _ in range(repeats + 1):
        for count, transfers in turns.items():
            transfers.append((send_raw(content, receivers[0]), send_update(weights, receivers[:count])))
    return [
        {
            "receivers": count,
            "update_mib": SOURCE * ROUNDS,
            **spread("share_of_bound", [count * raw.seconds[0] / max(sent.seconds) for raw, sent in transfers[1:]]),
            **spread("slowest_over_fastest", [max(sent.seconds) / min(sent.seconds) for _, sent in transfers[1:]]),
            **spread("gib_per_s", [count * gib / max(sent.seconds) for _, sent in transfers[1:]]),
            **spread("bound_gib_per_s", [gib / raw.seconds[0] for raw, _ in transfers[1:]]),
            **spread("cpu_over_bound", [sent.cpu / count / raw.cpu for raw, sent in transfers[1:]]),
        }
        for count, transfers in turns.items()
    ]


def main() -> int:
    """Measure, write and print."""
    chosen = arguments(__doc__, "fan_out", repeats=7).parse_args()
    torch.set_num_threads(1)
    load = os.getloadavg()[0]
    start = multiprocessing.get_context("spawn")
    pipes = []
    processes = []
    for _ in range(max(RECEIVERS)):
        ours, theirs = multiprocessing.Pipe()
        processes.append(start.Process(target=work, args=(theirs,), daemon=True))
        processes[-1].start()
        pipes.append(ours)
    rows = measure(pipes, chosen.repeats)
    for pipe in pipes:
        pipe.send(None)
    for process in processes:
        process.join()
    write(chosen.out, rows, tensor_mib=TENSOR // MIB, buffer_mib=BUFFER // MIB, load=load)
    table(
        rows, ["receivers", "gib_per_s", "bound_gib_per_s", "share_of_bound", "slowest_over_fastest", "cpu_over_bound"]
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
