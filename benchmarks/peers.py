"""The same job with a plain loop, with flow_grpo's trainer and with this trainer, in turn.

    python benchmarks/peers.py [--flow-grpo FOLDER] [--steps N] [--repeats N] [--pixels N] [--prompts N] [--out FILE]

The job is examples/colors-grpo.yaml. `plain_loop.py` is a single process with diffusers and peft; `flow_grpo_job.py`
runs flow_grpo's `scripts/train_sd3.py` from a checkout that you made (`git clone https://github.com/yifan123/flow_grpo`,
`pip install ml_collections`), and is left out without `--flow-grpo`. All three generate, score and train on images of
the same size and number, with the same adapter and the same scorer; each evaluates before the first step and after the
last one, whose end includes it. Every program runs with one thread per process, with its own defaults, and once more
while its memory is read: that takes the kernel long enough to slow down a program of many processes.
"""

import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from formatting import table
from memory import PeakMemory
from peer_job import PeerJob, write_job
from results import ROOT, arguments, write
from ruamel.yaml import YAML
from training_sections import peers_table

EXAMPLE = ROOT / "examples" / "colors-grpo.yaml"
EXAMPLE_PIXELS = 64  # its scorer takes no other size
STEP = re.compile(r"^step +(\d+)\b")
# What `drl run` prints before and after the imports of the training stack.
IMPORTS = ("starting Ray, importing", "starting the rollout engine")
MODES = {"one": {"OMP_NUM_THREADS": "1"}, "default": {}, "memory": {}}
LONGEST_RUN = 3600.0  # seconds
PROCESS_SECONDS = 0.25  # between two counts of processes


@dataclass
class Marks:
    """Ends of the steps of a run."""

    seconds: list[float] = field(default_factory=list)
    """Since the command."""
    cpu_seconds: list[float] = field(default_factory=list)
    """CPU time of all processes until the end of each step."""
    imports: list[float] = field(default_factory=list)
    """When imports began and ended, since the command; empty for a program that does not print it."""


def read_example(pixels: int, prompts: int, steps: int, folder: Path) -> PeerJob:
    """The example as values."""
    spec = YAML(typ="safe").load(EXAMPLE)["spec"]
    lora = spec["model"]["lora"]
    sampler = spec["rollout"]["sampler"]
    samples = spec["rollout"]["samplesPerPrompt"]

    def texts(files: Sequence[str]) -> list[str]:
        lines = [line for file in files for line in (EXAMPLE.parent / file).read_text(encoding="utf-8").splitlines()]
        return [json.loads(line)["prompt"] for line in lines]

    return PeerJob(
        model=str(EXAMPLE.parent / spec["model"]["base"]),
        folder=str(folder),
        train_prompts=texts(spec["data"]["train"]),
        held_out_prompts=texts(spec["data"]["validation"])[: 2 * prompts * samples],
        steps=steps,
        prompts=prompts,
        samples=samples,
        pixels=pixels,
        scorer="shapes" if pixels == EXAMPLE_PIXELS else "jpeg",
        denoising_steps=spec["rollout"]["pipeline"]["steps"],
        window=sampler["window"]["size"],
        noise_level=sampler["noiseLevel"],
        text_length=spec["rollout"]["pipeline"]["maxSequenceLength"],
        learning_rate=spec["trainer"]["learningRate"],
        lora_rank=lora["rank"],
        lora_alpha=lora["alpha"],
        lora_targets=lora["targetModules"],
    )


def commands(job: PeerJob, folder: Path, flow_grpo: Path | None) -> dict[str, list[str]]:
    """The command of each program, by the program's name."""
    file = folder / "job.json"
    write_job(job, file)
    here = Path(__file__).parent
    by_program = {"plain loop": [sys.executable, str(here / "plain_loop.py"), str(file)]}
    if flow_grpo is not None:
        by_program["flow_grpo"] = [sys.executable, str(here / "flow_grpo_job.py"), str(flow_grpo), str(file)]
    held_out = folder / "held_out.jsonl"
    held_out.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in job.held_out_prompts))
    changes = {
        "spec.rollout.pipeline.height": job.pixels,
        "spec.rollout.pipeline.width": job.pixels,
        "spec.trainer.batch.prompts": job.prompts,
        "spec.trainer.totalSteps": job.steps,
        "spec.trainer.evalEverySteps": job.steps,
        "spec.checkpoint.everySteps": job.steps,
        "spec.data.validation": f"[{held_out}]",
        "spec.reward.scorers": f"[{{name: {job.scorer}}}]",
    }
    by_program["here"] = run_command(folder, changes)
    return by_program


def run_command(folder: Path, settings: Mapping[str, Any]) -> list[str]:
    """The command that trains the example in a folder, with some fields of the job changed."""
    run = [sys.executable, "-m", "omni_operator.cli", "run", str(EXAMPLE), "--runs", str(folder), "--fresh", "--plain"]
    return [*run, *(word for name, value in settings.items() for word in ("--set", f"{name}={value}"))]


def processes_of(root: psutil.Process) -> list[psutil.Process]:
    """A process and its descendants."""
    try:
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def cpu_seconds(root: psutil.Process) -> float:
    """CPU seconds of a process and its descendants, those that have ended included."""
    total = 0.0
    for process in processes_of(root):
        try:
            total += sum(process.cpu_times()[:4])
        except psutil.NoSuchProcess:
            continue
    return total


def most_processes(root: psutil.Process, done: threading.Event, report: Callable[[int], None]) -> None:
    """Report the number of processes until the run is done."""
    while not done.wait(PROCESS_SECONDS):
        report(len(processes_of(root)))


def measure(command: Sequence[str], mode: str, job: PeerJob) -> dict[str, Any]:
    """Run a program once."""
    unset = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    environment = unset | MODES[mode] | {"PYTHONUNBUFFERED": "1", "VERL_PLATFORM": "cpu"}
    marks = Marks()
    counts: list[int] = [1]
    done = threading.Event()
    began = time.monotonic()
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=job.folder
    )
    root = psutil.Process(process.pid)
    too_long = threading.Timer(LONGEST_RUN, process.send_signal, [signal.SIGINT])
    too_long.start()
    counter = threading.Thread(target=most_processes, args=(root, done, counts.append), daemon=True)
    peak = PeakMemory(process.pid) if mode == "memory" else None
    try:
        with peak or nullcontext():
            if peak:
                counter.start()
            for line in process.stdout or ():
                if line.startswith(IMPORTS):
                    marks.imports.append(time.monotonic() - began)
                if STEP.match(line):
                    marks.seconds.append(time.monotonic() - began)
                    marks.cpu_seconds.append(cpu_seconds(root))
            code = process.wait()
    finally:
        too_long.cancel()
        done.set()
        if peak:
            counter.join()
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait()
    if code != 0 or len(marks.seconds) != job.steps:
        raise SystemExit(f"{' '.join(command)} ended with {code} after {len(marks.seconds)} of {job.steps} steps")
    if peak:
        return {"mode": mode, "peak_bytes": peak.bytes, "processes": max(counts)}
    # The last step contains an evaluation.
    steps = [after - before for before, after in zip(marks.seconds[:-1], marks.seconds[1:-1], strict=False)]
    spent = [after - before for before, after in zip(marks.cpu_seconds[:-1], marks.cpu_seconds[1:-1], strict=False)]
    return {
        "mode": mode,
        "step_seconds": statistics.median(steps),
        "slowest_over_median": max(steps) / statistics.median(steps),
        "cpu_seconds_a_step": statistics.median(spent),
        "first_step_seconds": marks.seconds[0],
        "first_step_cpu_seconds": marks.cpu_seconds[0],
        "whole_seconds": marks.seconds[-1],
        **({"import_seconds": marks.imports[1] - marks.imports[0]} if marks.imports else {}),
    }


def main() -> int:
    """Measure, write and print."""
    parser = arguments(__doc__, "peers", repeats=3)
    parser.add_argument("--flow-grpo", type=Path, metavar="FOLDER", help="checkout of flow_grpo")
    parser.add_argument("--steps", type=int, default=20, help="at least 3")
    parser.add_argument("--pixels", type=int, default=64, help="height and width of the images")
    parser.add_argument("--prompts", type=int, default=8, help="prompts of a step, of 16 images each")
    parser.add_argument("--modes", nargs="*", choices=list(MODES), default=list(MODES))
    chosen = parser.parse_args()
    rows: list[dict[str, Any]] = []
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        job = read_example(chosen.pixels, chosen.prompts, chosen.steps, Path(name))
        flow_grpo = chosen.flow_grpo.resolve() if chosen.flow_grpo else None
        programs = commands(job, Path(name), flow_grpo)
        for turn in range(chosen.repeats):
            for mode in chosen.modes:
                for program, command in programs.items():
                    rows.append({"program": program, "turn": turn, **measure(command, mode, job)})
                    print({key: round(v, 2) if isinstance(v, float) else v for key, v in rows[-1].items()}, flush=True)
    conditions = {"steps": job.steps, "images": job.images, "pixels": job.pixels, "load": load}
    write(chosen.out, rows, **conditions)
    print(table(*peers_table({"runs": rows, **conditions})))
    return 0


if __name__ == "__main__":
    sys.exit(main())
