"""Removal of the shared memory of killed child processes, and of nothing else."""

import multiprocessing
import subprocess
import sys
from multiprocessing import resource_tracker
from multiprocessing import shared_memory as python
from pathlib import Path

from verl_omni.workers.rollout.vllm_rollout.server import shared_memory

# The child has a segment and a semaphore, and no resource tracker that would remove them.
CHILD = """
import sys, time
from multiprocessing import resource_tracker, shared_memory, synchronize, get_context
resource_tracker.register = resource_tracker.ensure_running = lambda *kind: None
segment = shared_memory.SharedMemory(create=True, size=16)
lock = get_context("spawn").Lock()
theirs = shared_memory.SharedMemory(sys.argv[1])
print(segment.name, flush=True)
time.sleep(600)
"""


def test_shared_memory_of_a_killed_child_is_removed_but_not_own_semaphores() -> None:
    own_segment = python.SharedMemory(create=True, size=16)
    lock = multiprocessing.get_context("spawn").Lock()
    child = subprocess.Popen([sys.executable, "-c", CHILD, own_segment.name], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        segment = Path("/dev/shm") / child.stdout.readline().strip()
        files = shared_memory.child_segments()
        assert {segment, Path("/dev/shm") / own_segment.name} <= files
        (semaphore,) = (file for file in files if file.name.startswith(shared_memory.SEMAPHORE))
    finally:
        child.kill()
        child.communicate()
    assert segment.exists() and semaphore.exists(), "still present before the removal"
    held = Path("/dev/shm/sem." + lock._semlock.name.removeprefix("/"))  # type: ignore[attr-defined]
    shared_memory.remove_segments(files | {held})
    assert not segment.exists() and not semaphore.exists() and not Path("/dev/shm", own_segment.name).exists()
    assert held.exists(), "own semaphores stay"
    own_segment.close()
    resource_tracker.unregister(f"/{own_segment.name}", "shared_memory")
