"""Train the example over several seeds, and a control at learning rate 0; print the held-out gain of each.

    python benchmarks/main_job.py [--seeds 0 1 2] [--steps N] [--out FILE]

Writes one JSON object: for each run the held-out reward and share of right pictures before and after with their
standard errors, the seconds to the first step, of the whole run and of each phase, and the peak memory of all
processes of the run together (proportional set size).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from memory import Peak

HERE = Path(__file__).resolve().parent
JOB = HERE.parent / "examples" / "red-grpo.yaml"


def measure(seed: int, steps: int | None, runs: Path, *, control: bool) -> dict[str, Any]:
    """One run from the command to its end."""
    job = runs / f"job-{seed}{'-control' if control else ''}.yaml"
    name = f"bench-{'control-' if control else ''}{seed}"
    text = JOB.read_text().replace("name: red-grpo", f"name: {name}")
    text = text.replace("shapes-sd3", str(JOB.parent / "shapes-sd3")).replace("prompts/", f"{JOB.parent / 'prompts'}/")
    if control:
        text = text.replace("learningRate: 0.001", "learningRate: 0")
    job.write_text(text)
    command = [sys.executable, "-m", "omni_operator.cli", "run", str(job), "--runs", str(runs), "--fresh", "--seed"]
    command += [str(seed), *(["--steps", str(steps)] if steps else [])]
    began = time.time()
    process = subprocess.Popen(command)
    with Peak(process.pid) as peak:
        if process.wait() != 0:
            raise SystemExit(f"{' '.join(command)} failed")
    whole = time.time() - began
    lines = [json.loads(line) for line in (runs / name / "metrics.jsonl").read_text().splitlines()]
    measured = [line for line in lines if "val/reward/mean" in line]
    stepped = [line for line in lines if "reward/mean" in line]
    return {
        "seed": seed,
        "control": control,
        "steps": len(stepped),
        "seconds": whole,
        "seconds_in_steps": sum(line["timing_s/step"] for line in stepped),
        "phases": {p: sum(line[f"timing_s/{p}"] for line in stepped) for p in ("generate", "update", "sync")},
        "peak_bytes": peak.bytes,
        "held_out": [
            {key.removeprefix("val/"): line[key] for key in ("step", *(k for k in line if k.startswith("val/")))}
            for line in measured
        ],
    }


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--steps", type=int)
    parser.add_argument("--no-control", action="store_true")
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--out", type=Path, default=HERE.parent / "docs" / "figures" / "main_job.json")
    chosen = parser.parse_args()
    chosen.runs.mkdir(parents=True, exist_ok=True)
    found = [measure(seed, chosen.steps, chosen.runs, control=False) for seed in chosen.seeds]
    if not chosen.no_control:
        found.append(measure(0, chosen.steps, chosen.runs, control=True))
    answer = {"machine": f"{os.cpu_count()} cores, {platform.machine()}, no accelerator", "runs": found}
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    chosen.out.write_text(json.dumps(answer, indent=2) + "\n")
    for each in found:
        first, last = each["held_out"][0], each["held_out"][-1]
        print(
            f"seed {each['seed']}{' control' if each['control'] else ''}: "
            f"reward {first['reward/mean']:.3f} -> {last['reward/mean']:.3f} (± {last['reward/stderr']:.3f}), "
            f"right {first.get('correct/mean', 0):.1%} -> {last.get('correct/mean', 0):.1%}, "
            f"{each['seconds']:.0f} s, peak {each['peak_bytes'] / 2**30:.1f} GiB"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
