"""Memory that is not used any more goes back to the system."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
