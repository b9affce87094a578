"""Memory of accelerators, for `drl fit --device`."""

from __future__ import annotations

from enum import Enum

MIB = 1 << 20


class Device(str, Enum):
    """Accelerators whose memory is known."""

    A100_40G = "a100-40g"
    A100_80G = "a100-80g"
    H100_80G = "h100-80g"
    H200_141G = "h200-141g"
    L40S_48G = "l40s-48g"
    ASCEND_910B_32G = "910b-32g"
    ASCEND_910B_64G = "910b-64g"


# As the drivers report it (nvidia-smi, npu-smi), in MiB: less than the name says where ECC or the maker's units take
# some of it.
_MIB = {
    Device.A100_40G: 40960,
    Device.A100_80G: 81920,
    Device.H100_80G: 81559,
    Device.H200_141G: 143771,
    Device.L40S_48G: 46068,
    Device.ASCEND_910B_32G: 32768,
    Device.ASCEND_910B_64G: 65536,
}


def vendor(device: Device) -> str:
    """Vendor of a device, as `accelerator.vendor` of a job names it."""
    return "Ascend" if device in (Device.ASCEND_910B_32G, Device.ASCEND_910B_64G) else "NVIDIA"


def memory(device: Device) -> int:
    """Bytes of one device."""
    return _MIB[device] * MIB


def reported_memory(names: tuple[str, ...]) -> int | None:
    """Bytes of the smallest device in lines of nvidia-smi, `name, N MiB, driver`; None if a line has no memory."""
    amounts = [_reported(line) for line in names]
    return min((size for size in amounts if size is not None), default=None) if None not in amounts else None


def _reported(line: str) -> int | None:
    for part in line.split(", "):
        number, _, unit = part.partition(" ")
        if unit == "MiB" and number.isdigit():
            return int(number) * MIB
    return None
