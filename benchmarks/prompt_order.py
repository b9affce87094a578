"""Seconds to choose the prompts of a step from a million, within an epoch and at the start of one.

python benchmarks/prompt_order.py [--repeats N] [--out FILE]

The first turn is not counted.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from results import arguments, spread, table, write

SIZES = (10_000, 1_000_000)
BATCH = 512


def seconds_of(order: Any, step: int) -> float:
    """Seconds to choose the rows of a step."""
    began = time.perf_counter()
    rows = order.rows(step)
    seconds = time.perf_counter() - began
    if len(set(rows)) != BATCH:
        raise RuntimeError("a step has a row twice")
    return seconds


def measure(repeats: int) -> list[dict[str, Any]]:
    """A row per size."""
    from verl_omni.trainer.data.prompt_dataset import PromptOrder

    rows = []
    for size in SIZES:
        turns = []
        for seed in range(repeats + 1):
            order = PromptOrder(size, BATCH, seed)
            turns.append((seconds_of(order, 1), seconds_of(order, 2)))
        first, later = zip(*turns[1:], strict=True)
        rows.append({"prompts": size, **spread("first_step_s", first), **spread("step_s", later)})
    return rows


def main() -> int:
    """Measure, write and print."""
    chosen = arguments(__doc__, "prompt_order", repeats=9).parse_args()
    rows = measure(chosen.repeats)
    write(chosen.out, rows, batch=BATCH)
    table(rows, ["prompts", "first_step_s", "step_s"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
