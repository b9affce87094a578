"""Facts about this machine, found without importing the training stack."""

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil

from .training_stack import STACK, installed_version, pinned


@dataclass(frozen=True, slots=True)
class Accelerators:
    """The accelerators of one vendor."""

    vendor: str
    count: int
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Machine:
    """What a run needs of a machine.

    Attributes:
        memory, memory_free, shared_memory, shared_memory_free, disk_free: in bytes.
        installed: versions of the training stack; None for what is not installed.
        pinned: versions that this distribution was tested with.
        reference: version of verl-omni, which has the import name `verl_omni` too; None if it is not installed.
    """

    python: tuple[int, int]
    cpus: int
    memory: int
    memory_free: int
    shared_memory: int
    shared_memory_free: int
    disk_free: int
    compiler: str | None
    accelerators: tuple[Accelerators, ...]
    installed: dict[str, str | None]
    pinned: dict[str, str]
    reference: str | None


def inspect_machine(folder: Path) -> Machine:
    """Inspect this machine; `folder` is where runs would be written."""
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
        accelerators=find_accelerators(),
        installed={name: installed_version(name) for name in STACK},
        pinned=pinned(),
        reference=installed_version("verl-omni"),
    )


def find_accelerators() -> tuple[Accelerators, ...]:
    """Accelerators, counted by their device files; names from the vendor's tool if it is installed."""
    accelerators = []
    if nvidia := _device_files("nvidia"):
        query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
        accelerators.append(Accelerators("NVIDIA", nvidia, _output_lines(query)))
    if ascend := _device_files("davinci"):
        accelerators.append(Accelerators("Ascend", ascend))
    return tuple(accelerators)


def _device_files(prefix: str) -> int:
    return sum(1 for entry in Path("/dev").iterdir() if re.fullmatch(rf"{prefix}\d+", entry.name))


def _output_lines(command: list[str]) -> tuple[str, ...]:
    if shutil.which(command[0]) is None:
        return ()
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except subprocess.TimeoutExpired:
        return ("(nvidia-smi did not answer within 30 s)",)
    return tuple(line.strip() for line in result.stdout.splitlines() if line.strip())


def _cpus() -> int:
    """Cores that this process may use, within the container's quota."""
    usable = len(psutil.Process().cpu_affinity())
    quota = _read("/sys/fs/cgroup/cpu.max").split()
    if len(quota) == 2 and quota[0] != "max":
        usable = min(usable, max(1, int(quota[0]) // int(quota[1])))
    return usable


def _memory() -> tuple[int, int]:
    """Total and available bytes, within the container's limit."""
    memory = psutil.virtual_memory()
    limit = _read("/sys/fs/cgroup/memory.max").strip()
    used = _read("/sys/fs/cgroup/memory.current").strip()
    if not limit.isdigit() or int(limit) >= memory.total:
        return memory.total, memory.available
    return int(limit), min(memory.available, max(0, int(limit) - int(used or 0)))


def out_of_memory_kills() -> int:
    """How many processes of this container the kernel has killed for lack of memory."""
    match = re.search(r"^oom_kill (\d+)", _read("/sys/fs/cgroup/memory.events"), re.MULTILINE)
    return int(match[1]) if match else 0


def _read(path: str) -> str:
    """Text of a kernel file; empty if this kernel does not have it."""
    try:
        return Path(path).read_text(encoding="ascii")
    except (FileNotFoundError, PermissionError):
        return ""


def _existing(folder: Path) -> Path:
    folder = folder.resolve()
    while not folder.exists():
        folder = folder.parent
    return folder
