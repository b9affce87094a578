"""Time per image for larger batches, higher resolutions and more replicas.

    python benchmarks/scaling.py [--repeats N] [--out FILE]

Each value is relative to the smallest size. The sizes take turns, and the first turn is not counted. Every batch is
full, so no engine waits for more requests.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from results import arguments, spread, table, write
from stack import Running, running, timed_generation

BATCH_SIZES = (4, 8, 16, 32, 64)
PICTURES = 64
RESOLUTIONS = (64, 128, 192, 256)
FEW = 8
REPLICAS = (1, 2)
REPLICA_BATCH_SIZE = 16


def measure_variants(variants: dict[int, Callable[[], float]], repeats: int, kind: str) -> list[dict[str, Any]]:
    """A row per variant; `relative` is its time per image over that of the first variant, turn by turn."""
    seconds: dict[int, list[float]] = {size: [] for size in variants}
    for _ in range(repeats + 1):
        for size, draw in variants.items():
            seconds[size].append(draw())
    first = seconds[next(iter(variants))][1:]
    return [
        {
            "kind": kind,
            "size": size,
            **spread("relative", [one / base for one, base in zip(found[1:], first, strict=True)]),
            **spread("seconds_a_picture", found[1:]),
        }
        for size, found in seconds.items()
    ]


def measure(on: Running, repeats: int) -> list[dict[str, Any]]:
    """Rows for batch size, resolution and replicas."""
    engines = {size: on.add_engine(size) for size in BATCH_SIZES}
    replicas = [engines[REPLICA_BATCH_SIZE], *(on.add_engine(REPLICA_BATCH_SIZE) for _ in REPLICAS[1:])]

    def generation(servers: list[Any], pictures: int, pixels: int = 64) -> Callable[[], float]:
        worker = on.worker(servers, pixels)
        return lambda: timed_generation(worker, pictures)[0] / pictures

    kinds = {
        "batch": {size: generation([engine], PICTURES) for size, engine in engines.items()},
        "resolution": {pixels: generation([engines[FEW]], FEW, pixels) for pixels in RESOLUTIONS},
        "replicas": {count: generation(replicas[:count], PICTURES) for count in REPLICAS},
    }
    return [row for kind, variants in kinds.items() for row in measure_variants(variants, repeats, kind)]


def main() -> int:
    """Measure, write and print."""
    chosen = arguments(__doc__, "scaling", repeats=5).parse_args()
    with running() as on:
        rows = measure(on, chosen.repeats)
    write(chosen.out, rows, pictures=PICTURES, pictures_of_resolutions=FEW, max_num_seqs_of_replicas=REPLICA_BATCH_SIZE)
    table(rows, ["kind", "size", "relative", "relative_lowest", "relative_highest", "seconds_a_picture"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
