"""`drl doctor`: what this machine has, what would run, and what is missing."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table

PACKAGES = ("omni-operator", "torch", "vllm", "vllm-omni", "verl", "ray", "diffusers", "peft", "transformers")
NEEDED_MEMORY = 7 * 2**30
NEEDED_SHARED_MEMORY = 256 * 2**20


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the answer; `remedy` is set where something is missing."""

    what: str
    found: str
    remedy: str | None = None


def doctor() -> None:
    """Print what this machine has and what is missing; exit code 1 if the main job cannot run."""
    findings = list(examine())
    table = Table(show_header=False, box=None)
    for each in findings:
        table.add_row("[red]missing[/]" if each.remedy else "[green]ok[/]", each.what, each.found, each.remedy or "")
    Console().print(table)
    if any(each.remedy for each in findings):
        raise typer.Exit(1)


def examine() -> Iterator[Finding]:
    """Everything there is to say."""
    running = f"{sys.version_info.major}.{sys.version_info.minor}"
    supported = (3, 11) <= sys.version_info[:2] < (3, 13)
    yield Finding("Python", running, None if supported else "install Python 3.11 or 3.12")
    for name in PACKAGES:
        yield _package(name)
    accelerator = _accelerator()
    yield Finding("accelerator", accelerator or "none: the engine runs on the CPU")
    yield Finding("mode", "GPU, engine in processes of its own" if accelerator else "CPU, engine inside its server")
    yield Finding("cores", str(os.cpu_count()))
    memory = _memory()
    yield Finding(
        "memory", _gib(memory), None if memory >= NEEDED_MEMORY else f"the main job needs {_gib(NEEDED_MEMORY)}"
    )
    shared = shutil.disk_usage("/dev/shm").free
    enough = shared >= NEEDED_SHARED_MEMORY
    yield Finding(
        "/dev/shm", f"{_gib(shared)} free", None if enough else "mount a larger /dev/shm (docker: --shm-size)"
    )
    compiler = shutil.which("cc") or shutil.which("gcc")
    yield Finding("C compiler", compiler or "none", None if compiler else "install one, e.g. apt-get install gcc")


def _package(name: str) -> Finding:
    try:
        return Finding(name, version(name))
    except PackageNotFoundError:
        return Finding(name, "not installed", "run `make setup`")


def _accelerator() -> str | None:
    if Path("/dev/nvidiactl").exists():
        return f"{len(list(Path('/dev').glob('nvidia[0-9]*')))} NVIDIA"
    if Path("/dev/davinci_manager").exists():
        return f"{len(list(Path('/dev').glob('davinci[0-9]*')))} Ascend"
    return None


def _memory() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return 0


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
