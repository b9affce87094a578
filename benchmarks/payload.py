"""Pixel transfer from the agent-loop workers to the trainer: float32, uint8, or no pixels.

    python benchmarks/payload.py [--repeats N] [--out FILE]

Two workers each put half of a batch of 512 x 512 images with rewards into Ray's object store; the trainer gets and
joins them. The variants take turns; the first turn is not counted.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from results import arguments, spread, table, write

PIXELS = 512
PICTURES = (8, 32)
VARIANTS = ("float32", "uint8", "no pixels")
WORKERS = 2


def halves(pictures: int, variant: str) -> list[Any]:
    """The batch of each worker."""
    import torch
    from verl import DataProto

    size = pictures // WORKERS
    made = []
    for _ in range(WORKERS):
        tensors = {"prompts": torch.ones(size, 24, dtype=torch.int64), "rm_scores": torch.ones(size, 1)}
        if variant != "no pixels":
            dtype = getattr(torch, variant)
            tensors["responses"] = torch.ones(size, 3, PIXELS, PIXELS, dtype=dtype)
        made.append(DataProto.from_dict(tensors=tensors))
    return made


def transfer_seconds(parts: list[Any]) -> float:
    """Seconds from the workers' batches to the trainer's batch."""
    import ray
    from verl import DataProto

    began = time.perf_counter()
    joined = DataProto.concat(ray.get([ray.put(part) for part in parts]))
    seconds = time.perf_counter() - began
    if len(joined) != sum(len(part) for part in parts):
        raise RuntimeError("rows were lost")
    return seconds


def measure(repeats: int) -> list[dict[str, Any]]:
    """A row per size and variant; `relative` is its time over that of float32, turn by turn."""
    from ray import cloudpickle

    rows = []
    for pictures in PICTURES:
        made = {variant: halves(pictures, variant) for variant in VARIANTS}
        seconds: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
        for _ in range(repeats + 1):
            for variant, parts in made.items():
                seconds[variant].append(transfer_seconds(parts))
        for variant, parts in made.items():
            counted = list(zip(seconds[variant][1:], seconds["float32"][1:], strict=True))
            rows.append(
                {
                    "pictures": pictures,
                    "variant": variant,
                    "megabytes": sum(len(cloudpickle.dumps(part)) for part in parts) / 1e6,
                    **spread("relative", [one / full for one, full in counted]),
                    **spread("seconds", seconds[variant][1:]),
                }
            )
    return rows


def main() -> int:
    """Measure, write and print."""
    chosen = arguments(__doc__, "payload", repeats=9).parse_args()
    from verl_omni.trainer import startup

    startup.prepare_environment(startup.accelerator_present())
    import ray

    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    try:
        rows = measure(chosen.repeats)
    finally:
        ray.shutdown()
    write(chosen.out, rows, resolution=PIXELS, workers=WORKERS)
    table(rows, ["pictures", "variant", "megabytes", "relative", "relative_lowest", "relative_highest", "seconds"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
