"""Weights, and a process that sends them: `python sending.py DEVICE HANDLE BUCKET_BYTES`."""

import sys

import torch

from verl_omni.weight_sync import ipc

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
DEADLINE = 120.0  # seconds


def weights() -> list[tuple[str, torch.Tensor]]:
    """The same tensors in each process, on the CPU."""
    generator = torch.Generator().manual_seed(0)
    return [(f"t{i}", torch.randn(64, i + 1, generator=generator).to(DTYPES[i % 3])) for i in range(40)]


def main(device: torch.device, handle: str, bucket_bytes: int) -> None:
    """Send the weights through IPC of the device, or from the CPU through shared memory."""
    buffer = None if device.type == "cpu" else device
    moved = ((name, tensor.to(device)) for name, tensor in weights())
    sent = ipc.send(moved, handle=handle, bucket_bytes=bucket_bytes, device=buffer, deadline=DEADLINE)
    assert sent == len(weights())


if __name__ == "__main__":
    main(torch.device(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
