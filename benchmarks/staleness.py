"""Learning of an example job whose samples are one and two versions of the weights old, against a synchronous run.

    python benchmarks/staleness.py [--job examples/red-grpo.yaml] [--seeds 0 1 2] [--ahead 0 1 2]
        [--override KEY=VALUE ...] [--add] [--out FILE]

All runs have replicas of their own, and differ in the batches that these generate ahead only. The runs of a seed follow
each other. The data of the runs so far are written after each run. `--add` keeps the runs that are in the file.
"""

import argparse
import hashlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from example_job import HERE, gain, measure, overrides
from results import FIGURES, write

JOB = HERE.parent / "examples" / "red-grpo.yaml"


def variant(changes: Sequence[str]) -> str:
    """A part of the run's name for its overrides: short, because the name of a job has at most 43 characters."""
    return hashlib.sha256(" ".join(changes).encode()).hexdigest()[:6] if changes else ""


def main() -> int:
    """Measure, write and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--job", type=Path, default=JOB)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--ahead", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--override", nargs="*", default=[], help="settings of every run, after the job's overrides")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--add", action="store_true")
    parser.add_argument("--out", type=Path, default=FIGURES / "staleness.json")
    chosen = parser.parse_args()
    chosen.runs.mkdir(parents=True, exist_ok=True)
    runs = json.loads(chosen.out.read_text(encoding="utf-8"))["runs"] if chosen.add else []
    for seed in chosen.seeds:
        for ahead in chosen.ahead:
            run = measure(
                chosen.job.resolve(),
                seed,
                chosen.steps,
                chosen.runs,
                control=False,
                ahead=ahead,
                variant=variant(chosen.override),
                changes=[overrides(chosen.job, chosen.override)],
            )
            runs.append({"ahead": ahead, "changes": chosen.override, **run})
            write(chosen.out, runs)
            rise, error = gain(run, "reward")
            print(f"seed {seed}, {ahead} ahead: {rise:+.3f} ± {error:.3f}, {run['seconds']:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
