"""Requests drawn as one batch against one after the other: how much faster, and which pixels differ.

    python benchmarks/batching.py [--repeats N] [--out FILE]

Engines that differ in `max_num_seqs` alone, each in a process of its own, take turns to draw the same pictures from
the same seeds. The first turn is not counted.
"""

from __future__ import annotations

import sys
from typing import Any

from results import arguments, spread, table, write
from stack import Running, drawn, running

PICTURES = 32
AT_ONCE = (1, 8, 16)
RESOLUTIONS = (64, 128)


def compared(ours: Any, theirs: Any) -> dict[str, Any]:
    """How two batches of pictures, uint8, differ: the share of equal values, and the largest difference in levels."""
    difference = (ours.int() - theirs.int()).abs()
    return {"equal": (difference == 0).float().mean().item(), "largest_difference": int(difference.max())}


def measure(on: Running, repeats: int) -> list[dict[str, Any]]:
    """A row for each resolution and batch size; `speedup` is over one after the other, turn by turn."""
    engines = {size: on.add_engine(size) for size in AT_ONCE}
    rows = []
    for pixels in RESOLUTIONS:
        workers = {size: on.worker([engine], pixels) for size, engine in engines.items()}
        seconds: dict[int, list[float]] = {size: [] for size in AT_ONCE}
        pictures: dict[int, Any] = {}
        for _ in range(repeats + 1):
            for size, worker in workers.items():
                took, made = drawn(worker, PICTURES)
                seconds[size].append(took)
                pictures[size] = made.batch["responses"]
        for size in AT_ONCE:
            counted = list(zip(seconds[1][1:], seconds[size][1:], strict=True))
            speedup = spread("speedup", [one / several for one, several in counted])
            took_all = spread("seconds", seconds[size][1:])
            same = compared(pictures[1], pictures[size])
            rows.append({"pixels": pixels, "max_num_seqs": size, **speedup, **same, **took_all})
    return rows


def main() -> int:
    """Measure and print."""
    chosen = arguments(__doc__, "batching", repeats=5).parse_args()
    with running() as on:
        rows = measure(on, chosen.repeats)
    write(chosen.out, rows, pictures=PICTURES)
    table(
        rows, ["pixels", "max_num_seqs", "speedup", "speedup_lowest", "speedup_highest", "equal", "largest_difference"]
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
