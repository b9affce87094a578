"""Results of a benchmark: command line, machine, spread over the turns, file of raw data."""

import argparse
import json
import os
import platform
import statistics
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FIGURES = ROOT / "docs" / "figures"


def machine() -> str:
    """The machine of a measurement."""
    return f"{os.cpu_count()} cores, {platform.machine()}, {_accelerator()}"


def _accelerator() -> str:
    if not Path("/dev/nvidia0").exists():
        return "no accelerator"
    import torch

    return str(torch.cuda.get_device_name()) if torch.cuda.is_available() else "no accelerator"


def spread(name: str, values: Sequence[float]) -> dict[str, Any]:
    """Median, range and all values: `name`, `name_lowest`, `name_highest` and `name_all`."""
    return {
        name: statistics.median(values),
        f"{name}_lowest": min(values),
        f"{name}_highest": max(values),
        f"{name}_all": list(values),
    }


def arguments(document: str | None, name: str, repeats: int) -> argparse.ArgumentParser:
    """Parser with the options that every benchmark has: `--repeats` and `--out`."""
    parser = argparse.ArgumentParser(description=document, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=repeats, help="turns of each variant, besides the first one")
    parser.add_argument("--out", type=Path, default=FIGURES / f"{name}.json")
    return parser


def results_file(parser: argparse.ArgumentParser, chosen: argparse.Namespace) -> Path:
    """The file of raw data. By default, a benchmark with the option `--gpu` writes to a file with another name."""
    out: Path = chosen.out
    return out.with_stem(f"{out.stem}_gpu") if chosen.gpu and out == parser.get_default("out") else out


def write(out: Path, runs: Sequence[dict[str, Any]], **conditions: Any) -> None:
    """Write the raw data with the machine, the date and the conditions of the measurement."""
    answer = {"machine": machine(), "date": date.today().isoformat(), **conditions, "runs": list(runs)}
    out.write_text(json.dumps(answer, indent=2) + "\n", encoding="utf-8")


def table(runs: Sequence[dict[str, Any]], columns: Sequence[str]) -> None:
    """Print columns as a Markdown table."""
    for line in [list(columns), ["---"] * len(columns), *([_cell(run[name]) for name in columns] for run in runs)]:
        print(f"| {' | '.join(line)} |")


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
