"""Seconds a picture as the batch, the resolution and the number of replicas grow.

    python benchmarks/scaling.py [--repeats N] [--out FILE]

Each against the smallest of its kind; the sizes take turns, and the first turn is not counted. Every batch of the
engines is full, so that none waits for more requests.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from results import arguments, spread, table, write
from stack import Running, drawn, running

BATCHES, PICTURES = (4, 8, 16, 32, 64), 64
RESOLUTIONS, FEW = (64, 128, 192, 256), 8
REPLICAS, AT_ONCE = (1, 2), 16


def taken(variants: dict[int, Callable[[], float]], repeats: int, kind: str) -> list[dict[str, Any]]:
    """A row for each variant; `relative` is its seconds a picture over those of the first, turn by turn."""
    seconds: dict[int, list[float]] = {size: [] for size in variants}
    for _ in range(repeats + 1):
        for size, draw in variants.items():
            seconds[size].append(draw())
    first = seconds[next(iter(variants))][1:]
    return [
        {
            "kind": kind, "size": size,
            **spread("relative", [one / base for one, base in zip(found[1:], first, strict=True)]),
            **spread("seconds_a_picture", found[1:]),
        }
        for size, found in seconds.items()
    ]  # fmt: skip


def measure(on: Running, repeats: int) -> list[dict[str, Any]]:
    """Rows of the three kinds."""
    engines = {size: on.add_engine(size) for size in BATCHES}
    replicas = [engines[AT_ONCE], *(on.add_engine(AT_ONCE) for _ in REPLICAS[1:])]

    def drawing(servers: list[Any], pictures: int, pixels: int = 64) -> Callable[[], float]:
        worker = on.worker(servers, pixels)
        return lambda: drawn(worker, pictures)[0] / pictures

    kinds = {
        "batch": {size: drawing([engine], PICTURES) for size, engine in engines.items()},
        "resolution": {pixels: drawing([engines[FEW]], FEW, pixels) for pixels in RESOLUTIONS},
        "replicas": {count: drawing(replicas[:count], PICTURES) for count in REPLICAS},
    }
    return [row for kind, variants in kinds.items() for row in taken(variants, repeats, kind)]


def main() -> int:
    """Measure and print."""
    chosen = arguments(__doc__, "growth", repeats=5).parse_args()
    with running() as on:
        rows = measure(on, chosen.repeats)
    write(chosen.out, rows, pictures=PICTURES, pictures_of_resolutions=FEW, max_num_seqs_of_replicas=AT_ONCE)
    table(rows, ["kind", "size", "relative", "relative_lowest", "relative_highest", "seconds_a_picture"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
