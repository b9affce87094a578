"""Memory that the process no longer uses, given back to the system.

glibc keeps what was freed below its newest allocation, for example the memory of thousands of deleted jobs.
"""

from __future__ import annotations

import asyncio
import ctypes

INTERVAL_SECONDS = 60.0


def release_memory() -> None:
    """Give unused pages of the heap back; does nothing where the C library has no `malloc_trim`, such as musl."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


async def run_releases() -> None:
    """Release memory periodically until cancelled."""
    while True:
        await asyncio.sleep(INTERVAL_SECONDS)
        release_memory()
