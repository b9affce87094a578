"""Write docs/contribute/benchmarks.md and its plots from the raw data in docs/figures.

    python benchmarks/page.py [--check]

The page contains only what the data files contain. With `--check`, nothing is written, and the command fails if a
committed file differs from what the data produce.
"""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

import rollout_sections as rollout
import training_sections as training
from formatting import Data, Section, wrapped
from results import FIGURES, ROOT

PAGE = ROOT / "docs" / "contribute" / "benchmarks.md"
INTRODUCTION = (
    "Speed, memory and learning on a CPU. `make bench` runs the programs in `benchmarks/` with the Python of "
    "`.venv/bin`, and writes this page from the raw data in `docs/figures/`. "
    "[Runs on a GPU](evidence.md#runs-on-a-gpu) are on another page."
)
METHOD = (
    "The variants of a run take turns; the first turn is not counted. Values are medians, with the lowest and the "
    "highest in parentheses."
)
UPPER_BOUNDS = "Other work ran on the machine unless a section says otherwise, so times are upper bounds."
# Title, text, and the command that measures, by the name of the data file.
Entry = tuple[str, Callable[[Data], Section], str]
TRAINING: dict[str, Entry] = {
    "colors-grpo": ("The main example", training.main_example, "example_job.py"),
    "red-grpo": ("The smallest example", training.smallest_example, "example_job.py --job examples/red-grpo.yaml"),
    "shapes-grpo": (
        "The compositional reward",
        training.compositional_reward,
        "example_job.py --job examples/shapes-grpo.yaml --seeds 0 --steps 60 --no-control",
    ),
    "start_up": ("Start-up", training.start_up, "start_up.py --repeats 1"),
    "peers": ("Next to other trainers", training.peers, "peers.py --flow-grpo FOLDER"),
    "peers_256": (
        "Next to other trainers, with larger images",
        training.peers,
        "peers.py --flow-grpo FOLDER --pixels 256 --prompts 2 --steps 3 --repeats 1 --modes one "
        "--out docs/figures/peers_256.json",
    ),
    "growth": ("Growth of a training step", training.growth, "growth.py"),
    "real_size": ("A model of real size", training.real_size, "real_size.py"),
    "generation_ahead": ("Generation during the update", training.generation_ahead, "generation_ahead.py"),
    "replica_loss": ("Replacement of a lost replica", training.replica_loss, "replica_loss.py"),
    "learning": ("Settings that change what is learned", training.learning, "learning.py"),
    "sde_window": ("Placement of the SDE window", training.sde_window, "sde_window.py"),
    "staleness": ("Learning from older samples", training.staleness, "staleness.py"),
    "staleness_colors": (
        "Older samples with a limit on the ratio",
        training.staleness_with_limit,
        "staleness.py --job examples/colors-grpo.yaml --out docs/figures/staleness_colors.json --override "
        "algorithm.rollout_correction.bypass_mode=true actor_rollout_ref.actor.diffusion_loss.clip_ratio=0.0003",
    ),
}
ROLLOUT: dict[str, Entry] = {
    "batching": ("Request batching", rollout.batching, "batching.py"),
    "reward_overlap": ("Reward computation during generation", rollout.reward_overlap, "reward_overlap.py"),
    "scoring": ("Slow scorers", rollout.scoring, "scoring.py"),
    "overhead": ("Latency added by the agent loop", rollout.overhead, "overhead.py"),
    "agent_loop": ("CPU time of the agent loop", rollout.agent_loop, "agent_loop.py"),
    "weight_transfer": ("Weight transfer through shared memory", rollout.weight_transfer, "weight_transfer.py"),
    "fan_out": ("Weight update over the network to several replicas", rollout.fan_out, "fan_out.py"),
    "adapter_update": ("Adapter update through memory and through files", rollout.adapter_update, "adapter_update.py"),
}
NOT_MEASURED = (
    "- The compositional reward over 120 steps and three seeds.\n"
    "- Start-up over several pairs of runs, and in pods.\n"
    "- The replacement of a replica on a Kubernetes cluster.\n"
    "- Memory and speed on a GPU or NPU, except for [one short run](evidence.md#runs-on-a-gpu)."
)


def generated(figures: Path) -> dict[str, str]:
    """The page and its plots as text, by their path in docs/."""
    files: dict[str, str] = {}
    missed: list[str] = []
    groups: list[str] = []
    usual = _usual_machine(figures)
    for title, method, entries in (("Training", UPPER_BOUNDS, TRAINING), ("Rollout", METHOD, ROLLOUT)):
        groups += [f"## {title}", wrapped(method)]
        for name, entry in entries.items():
            section = _section(figures / f"{name}.json", entry, usual)
            groups += section.blocks
            missed += section.missed
            files |= {f"figures/{plot}.svg": text for plot, text in section.plots.items()}
    introduction = f"{INTRODUCTION} Unless a section names another machine: {usual}." if usual else INTRODUCTION
    parts = ["# Benchmarks", wrapped(introduction)]
    if missed:
        parts += ["## Missed targets", "\n".join(wrapped(f"- {sentence}") for sentence in missed)]
    parts += [*groups, "## Not measured yet", wrapped(NOT_MEASURED)]
    return {PAGE.relative_to(FIGURES.parent).as_posix(): "\n\n".join(parts) + "\n", **files}


def _usual_machine(figures: Path) -> str:
    """The machine of most measurements; empty without any."""
    files = [file for name in TRAINING | ROLLOUT if (file := figures / f"{name}.json").is_file()]
    machines = [json.loads(file.read_text(encoding="utf-8"))["machine"] for file in files]
    return max(machines, key=machines.count, default="")


def _section(file: Path, entry: Entry, usual: str) -> Section:
    """A section with its heading, the command that measures it, its machine unless usual, its text and its plots."""
    title, write, command = entry
    if not file.is_file():
        return Section([f"### {title}", f"Not measured yet (`python benchmarks/{command}`)."])
    data = json.loads(file.read_text(encoding="utf-8"))
    section = write(data)
    machine = "" if data["machine"] == usual else f", on {data['machine']}"
    blocks = [f"### {title}", f"`python benchmarks/{command}`{machine}"]
    blocks += [wrapped(block) for block in section.blocks]
    blocks += [f"![{title}](../figures/{name}.svg)" for name in section.plots]
    return Section(blocks, section.plots, section.missed)


def main() -> int:
    """Write the page, or compare it with the committed one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a committed file is out of date")
    chosen = parser.parse_args()
    docs = FIGURES.parent
    files = generated(FIGURES)
    if chosen.check:
        stale = [name for name, text in files.items() if not _has_text(docs / name, text)]
        print("\n".join(f"docs/{name} is out of date: run `python benchmarks/page.py`" for name in stale))
        return 1 if stale else 0
    for name, text in files.items():
        (docs / name).write_text(text, encoding="utf-8")
    return 0


def _has_text(file: Path, text: str) -> bool:
    return file.is_file() and file.read_text(encoding="utf-8") == text


if __name__ == "__main__":
    sys.exit(main())
