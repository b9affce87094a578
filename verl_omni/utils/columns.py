"""PURE: columns of a batch with a Python object in each row."""

from collections.abc import Sequence
from typing import Any

import numpy as np

# How often a sample was lost with its replica, and aborted. Only the client of the rollout servers sets these.
TIMES_LOST = "times_lost"
TIMES_ABORTED = "times_aborted"


def objects(values: Sequence[Any]) -> np.ndarray:
    """An object array [B] of any values; `np.array` would make values of one length a second dimension."""
    column: np.ndarray = np.empty(len(values), dtype=object)
    for row, value in enumerate(values):
        column[row] = value
    return column
