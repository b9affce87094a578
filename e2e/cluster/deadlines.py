"""Deadlines of the cluster and of its tests, in seconds, and the one loop that polls until them."""

import time
from collections.abc import Callable
from typing import TypeVar

from .errors import DeadlinePassed

T = TypeVar("T")

# Generous, for two busy cores: a deadline is met only where something is broken.
API_READY = 180.0
NODES_READY = 240.0
ADDONS_READY = 300.0
POD_RUNNING = 120.0
NODE_LOST = 120.0
NODE_BACK = 120.0
NAMESPACE_GONE = 120.0
CHILDREN_GONE = 90.0  # the garbage collector looks for new kinds every 30 s
AUDIT_SETTLED = 30.0
PROCESS_END = 30.0
COMMAND = 60.0
IMPORT_IMAGE = 1200.0
INSTALL_PACKAGES = 900.0
BUILD_PROGRAM = 5400.0

PAUSE = 0.1
NO_PROGRESS = 300.0


def wait_until(what: str, deadline: float, probe: Callable[[], T | None]) -> T:
    """The first value of `probe` that is neither None nor False.

    Raises:
        DeadlinePassed: after `deadline` seconds; the probe runs at least once.
    """
    end = time.monotonic() + deadline
    while True:
        value = probe()
        if value is not None and value is not False:
            return value
        if time.monotonic() >= end:
            raise DeadlinePassed(f"waited {deadline:g} s for {what}")
        time.sleep(PAUSE)


def wait_for_progress(what: str, most: int, steps: Callable[[], float], probe: Callable[[], T | None]) -> T:
    """The first value of `probe` that is neither None nor False, however long the steps before it take.

    Args:
        most: maximum number of further steps to wait for.
        steps: returns the number of steps made so far.

    Raises:
        DeadlinePassed: `probe` has no value after `most` steps, or no step was made for `NO_PROGRESS` seconds.
    """
    first = last = steps()
    end = time.monotonic() + NO_PROGRESS
    while True:
        value = probe()
        if value is not None and value is not False:
            return value
        if last - first >= most:
            raise DeadlinePassed(f"waited {most} steps for {what}")
        if (count := steps()) != last:
            last = count
            end = time.monotonic() + NO_PROGRESS
        elif time.monotonic() >= end:
            raise DeadlinePassed(f"waited for {what}, and nothing happened for {NO_PROGRESS:g} s")
        time.sleep(PAUSE)
