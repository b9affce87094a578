"""Coverage of a run: measured in every process of the tests, and reported as the functions that no test enters."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

SETTINGS = """[run]
branch = false
parallel = true
source = verl_omni, omni_operator
data_file = {folder}/data
patch = subprocess, _exit
concurrency = thread
core = {core}
disable_warnings = no-data-collected, module-not-measured, module-not-imported
"""
REPORT = "untouched.md"


def prepare(folder: Path) -> Path:
    """An empty folder with coverage's settings."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    # From Python 3.12 on, the interpreter counts lines at almost no cost.
    core = "sysmon" if sys.version_info >= (3, 12) else "ctrace"
    (folder / "settings.ini").write_text(SETTINGS.format(folder=folder, core=core), encoding="utf-8")
    return folder


def python(folder: Path) -> tuple[str, ...]:
    """The interpreter of stages: each runs under coverage, and so do the processes that it starts."""
    return (sys.executable, "-m", "coverage", "run", f"--rcfile={folder / 'settings.ini'}")


def report(folder: Path) -> str:
    """Combine the data of all processes and write the report; where it is."""
    settings = f"--rcfile={folder / 'settings.ini'}"
    data = folder / "coverage.json"
    for command in (["combine", "--quiet", settings], ["json", "--quiet", settings, f"-o{data}"]):
        subprocess.run([sys.executable, "-m", "coverage", *command], check=True)
    (folder / REPORT).write_text(untouched(json.loads(data.read_text(encoding="utf-8"))), encoding="utf-8")
    return f"\ncode that no test reached: {folder / REPORT}"


def untouched(found: dict[str, Any]) -> str:
    """Modules and functions that no test entered, in Markdown. PURE.

    Args:
        found: coverage's JSON report, whose regions are functions.
    """
    lines = [f"# Code that no test reached: {found['totals']['percent_covered']:.1f} % of lines were", ""]
    for path, file in sorted(found["files"].items()):
        if file["summary"]["num_statements"] and not file["summary"]["covered_lines"]:
            lines.append(f"- `{path}`: the module")
            continue
        for name, region in file.get("functions", {}).items():
            if name and region["summary"]["num_statements"] and not region["summary"]["covered_lines"]:
                lines.append(f"- `{path}`: `{name}`")
    return "\n".join(lines) + "\n"
