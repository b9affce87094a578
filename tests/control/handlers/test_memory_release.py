"""Memory that is not used any more goes back to the system."""

from __future__ import annotations

import subprocess
import sys

import pytest

from omni_operator.handlers.background import FEW_JOBS, MemoryRelease

# One block of many stays, the newest, below which the C library keeps what was freed.
PROGRAM = """
from omni_operator.handlers.background import release_memory

def pages():
    return int(open("/proc/self/statm").read().split()[1])

blocks = [bytes(1000) for _ in range(64_000)]
full = pages()
del blocks[:-1]
before = pages()
release_memory()
print(full, before, pages())
"""


@pytest.mark.slow  # it starts an interpreter
def test_memory_of_deleted_objects_is_given_back() -> None:
    result = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    full, before, after = map(int, result.stdout.split())
    assert before - after > 0.1 * full, (full, before, after)


def test_a_collection_follows_many_deletions_and_nothing_else() -> None:
    calls: list[str] = []
    jobs = 0
    memory = MemoryRelease(lambda: jobs, lambda: calls.append("collect"), lambda: calls.append("release"))

    def check(number: int) -> list[str]:
        nonlocal jobs
        jobs = number
        calls.clear()
        memory.check()
        return [*calls]

    assert check(5000) == check(4600) == ["release"]
    assert check(4400) == ["collect", "release"]
    assert check(4400) == check(4000) == ["release"], "it counts from the last collection"
    assert check(3000) == ["collect", "release"]
    assert check(FEW_JOBS) == ["collect", "release"]
    assert check(0) == ["release"], "few jobs take little memory"
