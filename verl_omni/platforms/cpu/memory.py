"""Memory that a process may use: the machine's memory, up to the limit of its container."""

from pathlib import Path

import psutil

CGROUPS = Path("/sys/fs/cgroup")
# Limit, usage, and the counts of the page cache, which the kernel gives back: cgroups v2, then v1.
FILES = (
    ("memory.max", "memory.current", "memory.stat", ("active_file", "inactive_file")),
    (
        "memory/memory.limit_in_bytes",
        "memory/memory.usage_in_bytes",
        "memory/memory.stat",
        ("total_active_file", "total_inactive_file"),
    ),
)


def available_memory(cgroups: Path = CGROUPS) -> tuple[int, int]:
    """Available and total bytes.

    Args:
        cgroups: folder of the container's counters.
    """
    machine = psutil.virtual_memory()
    available = int(machine.available)
    total = int(machine.total)
    for limit_file, used_file, stat_file, cached in FILES:
        limit = _read(cgroups / limit_file).strip()
        if not limit.isdigit() or int(limit) >= total:  # `max`, or v1's largest number
            continue
        counts = dict(line.split() for line in _read(cgroups / stat_file).splitlines())
        used = int(_read(cgroups / used_file) or 0) - sum(int(counts.get(name, 0)) for name in cached)
        return max(0, min(available, int(limit) - used)), int(limit)
    return available, total


def _read(path: Path) -> str:
    """Text of a kernel file; empty if this kernel does not have it."""
    try:
        return path.read_text(encoding="ascii")
    except OSError:
        return ""
