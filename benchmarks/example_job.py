"""Training of an example job with several seeds, and with learning rate 0 as a control.

    python benchmarks/example_job.py [--job examples/colors-grpo.yaml] [--seeds 0 1 2] [--steps N] [--out FILE]

Writes for each run: every held-out evaluation with its standard errors, the seconds of the whole run, of its steps and
of each phase, and the peak memory of all processes together (proportional set size).
"""

import argparse
import json
import math
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from memory import PeakMemory
from results import FIGURES, write
from ruamel.yaml import YAML

HERE = Path(__file__).resolve().parent
JOB = HERE.parent / "examples" / "colors-grpo.yaml"


def write_variant(job: Path, to: Path, *, control: bool, ahead: int | None = None) -> None:
    """Write the job under the name of its new file, with absolute paths; a control has learning rate 0.

    Args:
        ahead: batches that replicas of their own generate ahead; None: as the job says.
    """
    yaml = YAML()
    document = yaml.load(job)
    document["metadata"]["name"] = to.stem
    spec = document["spec"]
    spec["model"]["base"] = str(job.parent / spec["model"]["base"])
    for files in ("train", "validation"):
        spec["data"][files] = [str(job.parent / path) for path in spec["data"][files]]
    if control:
        spec["trainer"]["learningRate"] = 0
    if ahead is not None:
        spec["rollout"] |= {"placement": "Separate", "batchesAhead": ahead}
    yaml.dump(document, to)


def measure(
    example: Path,
    seed: int,
    steps: int | None,
    runs: Path,
    *,
    control: bool,
    ahead: int | None = None,
    variant: str = "",
    changes: Sequence[str] = (),
) -> dict[str, Any]:
    """Run the job once.

    Args:
        variant: part of the run's name. changes: assignments of `drl run --set`.
    """
    parts = ("bench", example.stem, "control" * control, variant, str(seed), "" if ahead is None else f"ahead-{ahead}")
    name = "-".join(part for part in parts if part)
    job = runs / f"{name}.yaml"
    write_variant(example, job, control=control, ahead=ahead)
    command = [sys.executable, "-m", "omni_operator.cli", "run", str(job), "--runs", str(runs), "--fresh", "--seed"]
    command += [str(seed), *(["--steps", str(steps)] if steps else [])]
    command += [argument for change in changes for argument in ("--set", change)]
    began = time.time()
    process = subprocess.Popen(command)
    with PeakMemory(process.pid) as peak:
        try:
            code = process.wait()
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
            process.wait()
            raise
        if code != 0:
            raise SystemExit(f"{' '.join(command)} failed")
    seconds = time.time() - began
    lines = [json.loads(line) for line in (runs / name / "metrics.jsonl").read_text().splitlines()]
    measured = [line for line in lines if "val/reward/mean" in line]
    stepped = [line for line in lines if "reward/mean" in line]
    return {
        "seed": seed,
        "control": control,
        "steps": len(stepped),
        "seconds": seconds,
        "seconds_in_steps": sum(line["timing_s/step"] for line in stepped),
        "phases": {p: sum(line[f"timing_s/{p}"] for line in stepped) for p in ("generate", "update", "sync")},
        "peak_bytes": peak.bytes,
        "held_out": [
            {key.removeprefix("val/"): line[key] for key in ("step", *(k for k in line if k.startswith("val/")))}
            for line in measured
        ],
    }


def overrides(job: Path, settings: Sequence[str]) -> str:
    """The assignment of `drl run --set` that adds settings to the job's own overrides."""
    own_overrides = YAML(typ="safe").load(job)["spec"]["algorithm"].get("overrides", [])
    return f"spec.algorithm.overrides={json.dumps([*own_overrides, *settings])}"


def gain(run: dict[str, Any], metric: str) -> tuple[float, float]:
    """Increase of a held-out metric from the first to the last evaluation, and the standard error of the increase.

    Both evaluations have the same prompts and seeds, so this error, which assumes independent samples, is an upper
    bound.
    """
    first = run["held_out"][0]
    last = run["held_out"][-1]
    error = math.hypot(*(evaluation.get(f"{metric}/stderr", 0.0) for evaluation in (first, last)))
    return last[f"{metric}/mean"] - first[f"{metric}/mean"], error


def main() -> int:
    """Measure, write and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--job", type=Path, default=JOB)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--steps", type=int)
    parser.add_argument("--no-control", action="store_true")
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    job = chosen.job.resolve()
    out = chosen.out or FIGURES / f"{job.stem}.json"
    chosen.runs.mkdir(parents=True, exist_ok=True)
    runs = [measure(job, seed, chosen.steps, chosen.runs, control=False) for seed in chosen.seeds]
    if not chosen.no_control:
        runs.append(measure(job, chosen.seeds[0], chosen.steps, chosen.runs, control=True))
    write(out, runs)
    metrics = [m for m in ("reward", "correct") if f"{m}/mean" in runs[0]["held_out"][0]]
    for run in runs:
        changes = []
        for metric in metrics:
            first = run["held_out"][0]
            last = run["held_out"][-1]
            rise, error = gain(run, metric)
            errors = f", {rise / error:.1f} standard errors" if error else ""
            changes.append(
                f"{metric} {first[f'{metric}/mean']:.3f} -> {last[f'{metric}/mean']:.3f} ({rise:+.3f}{errors})"
            )
        print(
            f"seed {run['seed']}{' control' if run['control'] else ''}: {', '.join(changes)}, "
            f"{run['seconds']:.0f} s, {run['seconds_in_steps']:.0f} s in steps, "
            f"peak {run['peak_bytes'] / 2**30:.1f} GiB"
        )
    trained = [run for run in runs if not run["control"]]
    if len(trained) > 1:
        for metric in metrics:
            rises = [gain(run, metric)[0] for run in trained]
            mean = statistics.mean(rises)
            error = statistics.stdev(rises) / math.sqrt(len(rises))
            print(f"{metric} over {len(rises)} seeds: {mean:+.3f} ± {error:.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
