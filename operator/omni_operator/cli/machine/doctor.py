"""`drl doctor`: check that this machine can run a job."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from omni_operator.cli import console
from omni_operator.cli.options import Json

from . import device_checks, machine_facts
from .machine_facts import Machine
from .training_stack import INSTALL, PYTHONS, SUPPORTED_PYTHONS

GIB = 1024**3
MARKS = {"ok": "ok      ", "note": "note    ", "missing": "MISSING "}


@dataclass(frozen=True, slots=True)
class Finding:
    """One result. Only `missing` prevents a run."""

    level: Literal["ok", "note", "missing"]
    text: str
    remedy: str = ""


def doctor(
    as_json: Json = False,
    gpu: Annotated[
        bool,
        typer.Option("--gpu", help="Also train small models on an accelerator, and check what it computes. Minutes."),
    ] = False,
) -> None:
    """Check that this machine can run a job.

    Example: drl doctor --json

    Prints what is missing, with its remedy.
    """
    here = machine_facts.inspect_machine(Path("runs"))
    if gpu:
        check_device(device_checks.device_type(here.accelerators), as_json=as_json)
        return
    findings = list(diagnose(here))
    missing = [finding for finding in findings if finding.level == "missing"]
    if as_json:
        document = {
            "ready": not missing,
            "runs_on": runs_on(here),
            "findings": [asdict(finding) for finding in findings],
        }
        console.say_json(document)
    else:
        _print(findings, len(missing))
    if missing:
        raise typer.Exit(console.FAILED)


def check_device(device: str, *, as_json: bool) -> None:
    """Run the checks on a device of this type of torch, and print each result as it ends."""
    checks = []
    for check in device_checks.run(device):
        checks.append(check)
        if not as_json:
            console.say(
                f"{MARKS['ok'] if check.passed else 'FAILED  '}{check.name}: {check.text} ({check.seconds:.0f} s)"
            )
    failed = [check.name for check in checks if not check.passed]
    if as_json:
        document = {"ready": not failed, "device": device, "checks": [asdict(check) for check in checks]}
        console.say_json(document)
    else:
        console.say(f"not ready: {', '.join(failed)} failed" if failed else f"ready: {len(checks)} checks passed")
    if failed:
        raise typer.Exit(console.FAILED)


def _print(found: list[Finding], missing: int) -> None:
    for finding in found:
        console.say(MARKS[finding.level] + finding.text)
        if finding.remedy:
            console.say(f"{' ' * len(MARKS['ok'])}-> {finding.remedy}")
    console.say(f"not ready: {missing} missing" if missing else "ready: drl run JOB.yaml")


def diagnose(here: Machine) -> Iterator[Finding]:
    """PURE: the findings about a machine."""
    yield from _resources(here)
    yield from _accelerators(here)
    yield from _packages(here)
    yield Finding("ok", f"jobs run on {runs_on(here)}")


def runs_on(here: Machine) -> str:
    """What a job without `spec.trainer.accelerator.vendor` runs on."""
    if not here.accelerators:
        return "the CPU (suitable for tiny models)"
    first = here.accelerators[0]
    return f"{first.count} {first.vendor} accelerator{'s' if first.count > 1 else ''}"


def _resources(here: Machine) -> Iterator[Finding]:
    text = f"Python {here.python[0]}.{here.python[1]}"
    supported = here.python in PYTHONS
    yield Finding("ok", text) if supported else Finding("missing", text, f"use Python {SUPPORTED_PYTHONS}")
    yield Finding("ok", f"{here.cpus} CPU cores")
    memory = f"{_gib(here.memory_free)} of {_gib(here.memory)} memory available"
    if here.memory_free < 4 * GIB:
        yield Finding("note", memory, "the smallest run needs about 4 GiB: close programs or use a larger machine")
    else:
        yield Finding("ok", memory)
    shared = f"{_gib(here.shared_memory_free)} of {_gib(here.shared_memory)} shared memory (/dev/shm) available"
    if here.shared_memory == 0:
        yield Finding("missing", "no /dev/shm, which weight sync needs", "mount -t tmpfs tmpfs /dev/shm")
    elif here.shared_memory_free < GIB:
        yield Finding("note", shared, "in a container: docker run --shm-size 2g; with less, Ray spills objects to disk")
    else:
        yield Finding("ok", shared)
    disk = f"{_gib(here.disk_free)} of disk available for runs"
    if here.disk_free < 2 * GIB:
        yield Finding("note", disk, "checkpoints may not fit: free some space, or use drl run --runs DIR")
    else:
        yield Finding("ok", disk)
    if here.compiler is None:
        yield Finding("note", "no C compiler", "install gcc (Debian: apt-get install gcc); torch.compile needs it")
    else:
        yield Finding("ok", f"C compiler {here.compiler}")


def _accelerators(here: Machine) -> Iterator[Finding]:
    for kind in here.accelerators:
        yield Finding("ok", f"{kind.count} x {kind.vendor}: {'; '.join(kind.names) or 'names unknown'}")
    if not here.accelerators:
        yield Finding("ok", "no accelerator (no /dev/nvidia0 for NVIDIA, no /dev/davinci0 for Ascend)")


def _packages(here: Machine) -> Iterator[Finding]:
    for name, installed in here.installed.items():
        pinned = here.pinned.get(name)
        if installed is None:
            yield Finding("missing", f"{name} is not installed", INSTALL)
        elif pinned and installed.partition("+")[0] != pinned:  # any build of the release will do: `0.30.0+cpu`
            yield Finding("missing", f"{name} {installed} is installed, {pinned} is needed", INSTALL)
        else:
            yield Finding("ok", f"{name} {installed}")
    if here.reference is not None:
        yield Finding(
            "missing",
            f"verl-omni {here.reference} is installed too, and both are `import verl_omni`",
            f"remove verl-omni, or delete .venv and {INSTALL}",
        )


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"
