"""A step of the whole trainer with more images, larger images, more engines and more prompts to choose from.

    python benchmarks/growth.py [--repeats N] [--steps N] [--kinds KIND ...] [--out FILE]

Each run is examples/colors-grpo.yaml with one size changed, without evaluations and checkpoints. Its first step is not
counted. The driver is the process that holds the data set and the samples of a step.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil
from formatting import table
from peers import EXAMPLE, LONGEST_RUN, STEP, run_command
from results import arguments, spread, write
from training_sections import growth_table

SAMPLES = 16  # of each prompt in the example
PROMPTS = "spec.trainer.batch.prompts"
POOLS = {"spec.rollout.placement": "Separate"}
ANY_SIZE = {"spec.reward.scorers": "[{name: jpeg}]"}  # the example's scorer takes 64 px only
KINDS: dict[str, dict[int, dict[str, Any]]] = {
    "images a step": {prompts * SAMPLES: {PROMPTS: prompts} for prompts in (2, 8, 32)},
    "pixels per side": {
        pixels: {**ANY_SIZE, PROMPTS: 2, "spec.rollout.pipeline.height": pixels, "spec.rollout.pipeline.width": pixels}
        for pixels in (64, 128, 256)
    },
    "engines of a pool": {count: {**POOLS, "spec.rollout.replicas": count} for count in (1, 2, 4)},
    "prompts of the data set": {rows: {"spec.data.train": rows} for rows in (1_000, 1_000_000)},
}
DRIVER = "verl_omni.trainer.main_diffusion"
PEAK = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)


def write_prompts(rows: int, folder: Path) -> Path:
    """A data set of so many rows: the example's prompts in turn, each with its number."""
    lines = (EXAMPLE.parent / "prompts" / "objects_train.jsonl").read_text(encoding="utf-8").splitlines()
    file = folder / f"{rows}.jsonl"
    with file.open("w", encoding="utf-8") as out:
        for row in range(rows):
            out.write(json.dumps({**json.loads(lines[row % len(lines)]), "row": row}) + "\n")
    return file


def driver_peak(root: psutil.Process) -> int:
    """Bytes that the driver has had in memory at most.

    Raises:
        LookupError: no process is the driver.
    """
    for process in root.children(recursive=True):
        if DRIVER in process.cmdline():
            return int(PEAK.findall(Path(f"/proc/{process.pid}/status").read_text(encoding="ascii"))[0]) << 10
    raise LookupError(f"no process runs {DRIVER}")


def measure(changes: dict[str, Any], steps: int, folder: Path) -> tuple[list[float], int]:
    """Seconds of each step but the first, and the driver's largest memory in bytes."""
    settings = {
        "spec.trainer.totalSteps": steps,
        "spec.trainer.evalEverySteps": steps,
        "spec.checkpoint.everySteps": steps,
        "spec.data.validation": "null",
        **changes,
    }
    command = run_command(folder, settings)
    environment = os.environ | {"PYTHONUNBUFFERED": "1", "VERL_PLATFORM": "cpu"}
    peak = 0
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            if STEP.match(line):
                peak = driver_peak(psutil.Process(process.pid))
        if process.wait(LONGEST_RUN) != 0:
            raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    metrics = [json.loads(line) for line in (folder / "colors-grpo" / "metrics.jsonl").read_text().splitlines()]
    return [line["timing_s/step"] for line in metrics if line["step"] > 1], peak


def main() -> int:
    """Measure, write and print."""
    parser = arguments(__doc__, "growth", repeats=1)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--kinds", nargs="*", choices=list(KINDS), default=list(KINDS))
    chosen = parser.parse_args()
    rows: list[dict[str, Any]] = []
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        for kind in chosen.kinds:
            for size, changes in KINDS[kind].items():
                assignments = {
                    field: f"[{write_prompts(value, Path(name))}]" if field == "spec.data.train" else value
                    for field, value in changes.items()
                }
                runs = [measure(assignments, chosen.steps, Path(name)) for _ in range(chosen.repeats)]
                images = changes.get(PROMPTS, 8) * SAMPLES
                seconds = [step / images for steps, _ in runs for step in steps]
                peak = max(driver for _, driver in runs)
                rows.append({"kind": kind, "size": size, **spread("seconds_an_image", seconds), "driver_bytes": peak})
    conditions = {"steps": chosen.steps, "load": load}
    write(chosen.out, rows, **conditions)
    print(table(*growth_table({"runs": rows, **conditions})))
    return 0


if __name__ == "__main__":
    sys.exit(main())
