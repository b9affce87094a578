"""Threads and memory allocator of a process that computes on a CPU."""

import ctypes
import os

THREADS = "VERL_CPU_PHASE_THREADS"
"""Variable with the threads of a process whose phase has the machine to itself; unset: torch's own number."""
MIB = 2**20
# Options of glibc's mallopt (malloc.h): by default it returns every large tensor to the kernel when it is freed, and
# the next one of the same size costs a page fault for each 4 KiB, 95,000 in a step of the main example.
ALLOCATOR_OPTIONS = {
    -8: 1,  # M_ARENA_MAX: threads share one heap, and what one of them has freed
    -3: 32 * MIB,  # M_MMAP_THRESHOLD: the largest that glibc accepts
    -1: 512 * MIB,  # M_TRIM_THRESHOLD: free memory that a process keeps
    -2: 64 * MIB,  # M_TOP_PAD: growth of the heap
}


def phase_threads(cpus: int, ranks: int, *, overlapping: bool) -> int:
    """Threads of each engine and of each trainer rank, at least 1. PURE.

    Args:
        ranks: trainer ranks on this machine; each has an engine.
        overlapping: whether generation and update always run at the same time.
    """
    return 1 if overlapping else max(1, cpus // ranks)


def shared_threads(threads: int) -> int:
    """PURE: threads for engine and trainer each while both compute; `threads` are for a phase that computes alone."""
    return max(1, threads // 2)


def use_phase_threads(*, shared: bool = False) -> None:
    """Let this thread compute with the threads of `THREADS` from here on.

    Other threads of the process, whose tensors are small, keep one: when a process has more threads of libgomp than
    CPUs, libgomp no longer lets them wait actively, not even for `GOMP_SPINCOUNT`.

    Args:
        shared: whether engine and trainer compute at the same time, with half of the threads each.
    """
    if count := os.environ.get(THREADS):
        import torch

        torch.get_num_threads()  # the first time, it gives this thread the number of the process
        threads = shared_threads(int(count)) if shared else int(count)
        ctypes.CDLL("libgomp.so.1").omp_set_num_threads(threads)  # torch has loaded it


def return_freed_memory() -> None:
    """Return freed memory to the kernel, before forks would share it; does nothing without glibc."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)


def keep_freed_memory() -> None:
    """Keep freed memory in this process instead of returning it to the kernel; does nothing without glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, size in ALLOCATOR_OPTIONS.items():
            mallopt(option, size)
