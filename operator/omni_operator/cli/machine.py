"""What this machine has. Imports nothing of the training stack."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from .training_stack import STACK, installed_version, pinned

_NO_LIMIT = 1 << 60


@dataclass(frozen=True, slots=True)
class Devices:
    """The accelerators of one vendor."""

    vendor: str
    count: int
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Machine:
    """Facts. Sizes are bytes; a distribution that is not installed has the version None."""

    python: tuple[int, int]
    cpus: int
    memory: int
    memory_free: int
    shared_memory: int
    shared_memory_free: int
    disk_free: int
    compiler: str | None
    devices: tuple[Devices, ...]
    installed: dict[str, str | None]
    pinned: dict[str, str]
    reference: str | None  # the distribution that has our import name too


def look(folder: Path) -> Machine:
    """Look around; `folder` is where runs would be written."""
    memory, free = _memory()
    shm = Path("/dev/shm")
    shared = shutil.disk_usage(shm) if shm.is_dir() else None
    return Machine(
        python=sys.version_info[:2],
        cpus=_cpus(),
        memory=memory,
        memory_free=free,
        shared_memory=shared.total if shared else 0,
        shared_memory_free=shared.free if shared else 0,
        disk_free=shutil.disk_usage(_existing(folder)).free,
        compiler=shutil.which("cc") or shutil.which("gcc") or shutil.which("clang"),
        devices=devices(),
        installed={name: installed_version(name) for name in STACK},
        pinned=pinned(),
        reference=installed_version("verl-omni"),
    )


def devices() -> tuple[Devices, ...]:
    """Accelerators, by their device files; names where the vendor's tool tells them."""
    found = []
    if nvidia := _device_files("nvidia"):
        query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
        found.append(Devices("NVIDIA", nvidia, _lines_of(query)))
    if ascend := _device_files("davinci"):
        found.append(Devices("Ascend", ascend))
    return tuple(found)


def _device_files(prefix: str) -> int:
    return sum(1 for entry in Path("/dev").iterdir() if re.fullmatch(rf"{prefix}\d+", entry.name))


def _lines_of(command: list[str]) -> tuple[str, ...]:
    if shutil.which(command[0]) is None:
        return ()
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except subprocess.TimeoutExpired:
        return ("(nvidia-smi did not answer within 30 s)",)
    return tuple(line.strip() for line in result.stdout.splitlines() if line.strip())


def _cpus() -> int:
    """Cores that this process may use; a container's quota counts."""
    usable = len(os.sched_getaffinity(0))
    quota = _read("/sys/fs/cgroup/cpu.max").split()
    if len(quota) == 2 and quota[0] != "max":
        usable = min(usable, max(1, int(quota[0]) // int(quota[1])))
    return usable


def _memory() -> tuple[int, int]:
    """Total and available; a container's limit counts."""
    table = dict(re.findall(r"^(\w+):\s+(\d+) kB", _read("/proc/meminfo"), re.MULTILINE))
    total, free = int(table.get("MemTotal", 0)) * 1024, int(table.get("MemAvailable", 0)) * 1024
    text = _read("/sys/fs/cgroup/memory.max").strip()
    limit = int(text) if text.isdigit() else _NO_LIMIT
    if limit < total:
        used = int(_read("/sys/fs/cgroup/memory.current").strip() or 0)
        return limit, min(free, max(0, limit - used))
    return total, free


def out_of_memory_kills() -> int:
    """How often the kernel has killed a process of this container for its memory."""
    match = re.search(r"^oom_kill (\d+)", _read("/sys/fs/cgroup/memory.events"), re.MULTILINE)
    return int(match[1]) if match else 0


def _read(path: str) -> str:
    """Text of a kernel file; empty where this kernel has none."""
    try:
        return Path(path).read_text(encoding="ascii")
    except (FileNotFoundError, PermissionError):
        return ""


def _existing(folder: Path) -> Path:
    folder = folder.resolve()
    while not folder.exists():
        folder = folder.parent
    return folder
