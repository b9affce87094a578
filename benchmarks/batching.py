"""Request batching: speed-up over single requests, and differences of the pixels.

    python benchmarks/batching.py [--repeats N] [--out FILE]

Engines in separate processes that differ only in `max_num_seqs` take turns to generate the same images from the same
seeds. The first turn is not counted.
"""

import sys
from typing import Any

from results import arguments, spread, table, write
from stack import Running, running, timed_generation

PICTURES = 32
BATCH_SIZES = (1, 8, 16)
RESOLUTIONS = (64, 128)


def compare(ours: Any, theirs: Any) -> dict[str, Any]:
    """Share of equal values of two uint8 batches, and their largest difference in levels."""
    difference = (ours.int() - theirs.int()).abs()
    return {"equal": (difference == 0).float().mean().item(), "largest_difference": int(difference.max())}


def measure(on: Running, repeats: int) -> list[dict[str, Any]]:
    """A row per resolution and batch size; `speedup` compares with batch size 1, turn by turn."""
    engines = {size: on.add_engine(size) for size in BATCH_SIZES}
    rows = []
    for pixels in RESOLUTIONS:
        workers = {size: on.worker([engine], pixels) for size, engine in engines.items()}
        seconds: dict[int, list[float]] = {size: [] for size in BATCH_SIZES}
        pictures: dict[int, Any] = {}
        for _ in range(repeats + 1):
            for size, worker in workers.items():
                took, samples = timed_generation(worker, PICTURES)
                seconds[size].append(took)
                pictures[size] = samples.batch["responses"]
        for size in BATCH_SIZES:
            counted = list(zip(seconds[1][1:], seconds[size][1:], strict=True))
            speedup = spread("speedup", [alone / several for alone, several in counted])
            took_all = spread("seconds", seconds[size][1:])
            same = compare(pictures[1], pictures[size])
            rows.append({"pixels": pixels, "max_num_seqs": size, **speedup, **same, **took_all})
    return rows


def main() -> int:
    """Measure, write and print."""
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
