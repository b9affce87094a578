"""The machine and the source version of a run, for `machine.json` and `versions.json` of the run folder."""

import os
import platform
import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import psutil

SOURCES = Path(__file__).resolve().parents[3]


def describe_machine(proc: Path = Path("/proc"), dev: Path = Path("/dev")) -> dict[str, Any]:
    """CPU, cores available to this process, memory, and accelerators by model; read from files, no driver is loaded."""
    cpuinfo = proc / "cpuinfo"
    text = cpuinfo.read_text(encoding="utf-8", errors="replace") if cpuinfo.is_file() else ""
    model = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return {
        "cpu": model[1].strip() if model else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "accelerators": _accelerators(proc, dev),
    }


def available_cpus(quota: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """CPUs that this process may use, within its container's quota, at least 1.

    Args:
        quota: file of cgroup v2 with the microseconds of CPU time per period, or `max`, and the period.
    """
    usable = len(os.sched_getaffinity(0))
    limits = quota.read_text(encoding="utf-8").split() if quota.is_file() else []
    if len(limits) == 2 and limits[0] != "max":
        usable = min(usable, max(1, int(limits[0]) // int(limits[1])))
    return usable


def killed_for_memory(cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Number of processes of this container that the kernel has killed because its memory ran out; 0 if unknown."""
    files = (cgroups / "memory.events", cgroups / "memory" / "memory.oom_control")  # cgroups v2, v1
    text = "".join(path.read_text(encoding="utf-8") for path in files if path.is_file())
    return sum(int(count) for count in re.findall(r"^oom_kill (\d+)$", text, re.MULTILINE))


def _accelerators(proc: Path, dev: Path) -> dict[str, int]:
    models: Counter[str] = Counter()
    for path in (proc / "driver" / "nvidia" / "gpus").glob("*/information"):
        match = re.search(r"^Model:\s*(.+)$", path.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
        models[match[1].strip() if match else "NVIDIA GPU"] += 1
    if npus := [path for path in dev.glob("davinci*") if path.name.removeprefix("davinci").isdigit()]:
        models["Ascend NPU"] = len(npus)
    return dict(models)


def source_commit(root: Path = SOURCES) -> str | None:
    """The Git commit of the sources, marked if tracked files were modified; None outside a checkout or without Git."""
    if not (root / ".git").exists():
        return None
    try:
        commit = _git(root, "rev-parse", "--short=12", "HEAD")
        modified = _git(root, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{commit} with local changes" if modified else commit


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.strip()
