"""Memory of a CPU that counts as an accelerator: the limit of the pod, not the machine's memory."""

from pathlib import Path

import psutil
import pytest

from verl_omni.platforms.cpu.memory import available_memory

MIB = 2**20
V2 = {"memory.max": 512 * MIB, "memory.current": 300 * MIB, "memory.stat": "anon 1\nactive_file {0}\ninactive_file {0}"}
V1 = {
    "memory/memory.limit_in_bytes": 512 * MIB,
    "memory/memory.usage_in_bytes": 300 * MIB,
    "memory/memory.stat": "cache 1\ntotal_active_file {0}\ntotal_inactive_file {0}",
}


@pytest.mark.parametrize("files", [V1, V2], ids=["cgroups v1", "cgroups v2"])
def test_a_limit_of_the_container_counts_and_the_page_cache_does_not(
    files: dict[str, int | str], tmp_path: Path
) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{content}\n".format(50 * MIB))
    assert available_memory(tmp_path) == (512 * MIB - 200 * MIB, 512 * MIB)


@pytest.mark.parametrize("limit", ["max", str(2**63 - 4096), None])
def test_without_a_limit_it_is_the_memory_of_the_machine(limit: str | None, tmp_path: Path) -> None:
    if limit is not None:
        (tmp_path / "memory.max").write_text(f"{limit}\n")
    available, total = available_memory(tmp_path)
    assert total == psutil.virtual_memory().total
    assert 0 < available < total
