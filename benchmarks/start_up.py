"""Start-up: seconds from the command to the first weights and to the first step, and peak memory.

    python benchmarks/start_up.py [--repeats N] [--out FILE]

A job of one step, with Ray workers that import their own modules and with forked workers. The two variants take turns;
the first pair warms the file cache and is not counted.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from memory import PeakMemory
from results import arguments, write

HERE = Path(__file__).resolve().parent
JOB = HERE.parent / "examples" / "red-grpo.yaml"
MARKS = {"weights": "publishing the first weights", "step": "step 1/"}


def measure(fork: bool, runs: Path) -> dict[str, Any]:
    """Run the job once."""
    job = JOB.with_name(f".start-up-{os.getpid()}.yaml")
    override = f"    - trainer.fork_workers={str(fork).lower()}\n"
    marker = "    overrides:\n"
    text = JOB.read_text()
    if marker not in text:
        raise SystemExit(f"{JOB} has no overrides to add one to")
    job.write_text(text.replace(marker, marker + override))
    command = [sys.executable, "-m", "omni_operator.cli", "run", str(job), "--runs", str(runs)]
    try:
        began = time.monotonic()
        process = subprocess.Popen([*command, "--fresh", "--plain", "--steps", "1"], stdout=subprocess.PIPE, text=True)
        figures: dict[str, Any] = {"fork": fork}
        with PeakMemory(process.pid) as peak:
            for line in process.stdout or ():
                for name, mark in MARKS.items():
                    if line.startswith(mark):
                        figures[name] = time.monotonic() - began
        if process.wait() != 0 or MARKS.keys() - figures.keys():
            raise SystemExit(f"{' '.join(command)} failed")
    finally:
        job.unlink()
    return {**figures, "peak_bytes": peak.bytes}


def main() -> int:
    """Measure, write and print."""
    chosen = arguments(__doc__, "start_up", repeats=3).parse_args()
    with tempfile.TemporaryDirectory() as runs:
        measured = [measure(fork, Path(runs)) for _ in range(chosen.repeats + 1) for fork in (False, True)][2:]
    write(chosen.out, measured)
    for name in ("weights", "step", "peak_bytes"):
        plain, forked = (
            statistics.median(run[name] for run in measured if run["fork"] == fork) for fork in (False, True)
        )
        scale, unit = (2**30, "GiB") if name == "peak_bytes" else (1, "s")
        print(
            f"{name}: plain {plain / scale:.1f} {unit}, forked {forked / scale:.1f} {unit}, ratio {plain / forked:.2f}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
