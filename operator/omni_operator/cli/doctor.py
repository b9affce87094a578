"""`drl doctor`: what this machine has, which mode a run would use, and what is missing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import typer

from . import console, machine
from .machine import Machine
from .training_stack import INSTALL

GIB = 1024**3
PYTHONS = ((3, 11), (3, 12))
MARKS = {"ok": "ok      ", "note": "note    ", "missing": "MISSING "}


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the diagnosis; only `missing` keeps a run from working."""

    level: Literal["ok", "note", "missing"]
    text: str
    remedy: str = ""


def doctor() -> None:
    """Print what this machine has and what is missing, in words."""
    found = list(diagnosis(machine.look(Path("runs"))))
    for finding in found:
        console.say(MARKS[finding.level] + finding.text)
        if finding.remedy:
            console.say(f"{' ' * len(MARKS['ok'])}-> {finding.remedy}")
    missing = [finding for finding in found if finding.level == "missing"]
    console.say(f"{len(missing)} missing: a run would not work" if missing else "ready: try `drl run JOB.yaml`")
    if missing:
        raise typer.Exit(console.FAILED)


def diagnosis(here: Machine) -> Iterator[Finding]:
    """PURE: facts -> findings."""
    yield from _host(here)
    yield from _packages(here)
    yield Finding("ok", f"a run here uses {mode(here)}")


def mode(here: Machine) -> str:
    """The mode that a job without `spec.trainer.accelerator.vendor` runs in."""
    if not here.devices:
        return "the host's processor (VERL_PLATFORM=cpu): the same engine, for tiny models"
    first = here.devices[0]
    return f"{first.count} {first.vendor} device{'s' if first.count > 1 else ''}"


def _host(here: Machine) -> Iterator[Finding]:
    text = f"Python {here.python[0]}.{here.python[1]}"
    wanted = f"{'.'.join(map(str, PYTHONS[0]))} or {'.'.join(map(str, PYTHONS[-1]))}"
    good = here.python in PYTHONS
    yield Finding("ok", text) if good else Finding("missing", text, f"use Python {wanted}")
    yield Finding("ok", f"{here.cpus} cores")
    memory = f"{_gib(here.memory_free)} of {_gib(here.memory)} memory available"
    if here.memory_free < 4 * GIB:
        yield Finding("note", memory, "the smallest run needs about 4 GiB; close something or take a larger machine")
    else:
        yield Finding("ok", memory)
    shared = f"{_gib(here.shared_memory_free)} of {_gib(here.shared_memory)} shared memory (/dev/shm) available"
    if here.shared_memory == 0:
        yield Finding("missing", "no /dev/shm, which weight updates go through", "mount a tmpfs there")
    elif here.shared_memory_free < GIB:
        yield Finding("note", shared, "docker run --shm-size 2g; with less, Ray keeps its objects on the disk")
    else:
        yield Finding("ok", shared)
    disk = f"{_gib(here.disk_free)} of disk free for runs"
    yield Finding("note", disk, "checkpoints may not fit") if here.disk_free < 2 * GIB else Finding("ok", disk)
    if here.compiler is None:
        yield Finding("note", "no C compiler", "needed where a package has no wheel, and by torch.compile: gcc")
    else:
        yield Finding("ok", f"C compiler {here.compiler}")
    for devices in here.devices:
        yield Finding("ok", f"{devices.count} x {devices.vendor}: {'; '.join(devices.names) or 'names unknown'}")
    if not here.devices:
        yield Finding("ok", "no accelerator found (NVIDIA: /dev/nvidia0, Ascend: /dev/davinci0)")


def _packages(here: Machine) -> Iterator[Finding]:
    for name, found in here.installed.items():
        wanted = here.pinned.get(name)
        if found is None:
            yield Finding("missing", f"{name} is not installed", INSTALL)
        elif wanted and _release(found) != wanted:
            yield Finding("missing", f"{name} {found}, but this version was tested with {wanted}", INSTALL)
        else:
            yield Finding("ok", f"{name} {found}")
    if here.reference is not None:
        yield Finding(
            "missing",
            f"verl-omni {here.reference} is installed beside omni-operator: both are `import verl_omni`",
            "pip uninstall verl-omni",
        )


def _release(found: str) -> str:
    """`0.28.0+cpu` -> `0.28.0`: the build is the machine's affair."""
    return found.partition("+")[0]


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"
