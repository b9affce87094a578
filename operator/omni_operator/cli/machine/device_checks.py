"""`drl doctor --gpu`: runs the trainer's checks of a device, in processes of their own."""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from omni_operator.cli import console

from . import training_stack
from .machine_facts import Accelerators

PROGRAM = "verl_omni.trainer.device_checks"
PARTS = ("model", "engine")  # the engine gets a device that no other process uses
DEVICE = "device"  # the check that all others need
DEVICES = {"NVIDIA": "cuda", "Ascend": "npu"}  # types of torch, by vendor


@dataclass(frozen=True, slots=True)
class Check:
    """What one check found, or why it failed."""

    name: str
    passed: bool
    text: str
    seconds: float


def device_type(accelerators: Sequence[Accelerators]) -> str:
    """Torch's type of this machine's accelerators; exits if there are none, or torch is not installed."""
    if not accelerators:
        console.refuse(
            "no accelerator: this machine has neither /dev/nvidia0 (NVIDIA) nor /dev/davinci0 (Ascend), and "
            "drl doctor --gpu runs its checks on one; drl doctor checks the rest",
            console.FAILED,
        )
    if missing := training_stack.missing_stack():
        console.refuse(training_stack.missing_text(missing))
    return DEVICES[accelerators[0].vendor]


def run(device: str) -> Iterator[Check]:
    """Run all checks on a device of this type, each with its result as soon as it ends.

    The end of the libraries' output is shown only if a part ends without a failed check, but with an exit code.
    """
    for part in PARTS:
        for check in _part(part, [sys.executable, "-m", PROGRAM, "--device", device, part]):
            yield check
            if check.name == DEVICE and not check.passed:
                return


def _part(part: str, command: Sequence[str]) -> Iterator[Check]:
    environment = {**console.user_environment(), "TQDM_DISABLE": "1", "HF_HUB_OFFLINE": "1"}
    failed = False
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        lines: list[str] = []
        for line in process.stdout:
            if (check := _parse(line)) is None:
                lines = [*lines[-19:], line.rstrip()]
                continue
            failed |= not check.passed
            yield check
    if process.returncode and not failed:
        last = "\n".join(lines)
        yield Check(
            part, False, f"{' '.join(command)} ended with exit code {process.returncode}; its last lines:\n{last}", 0.0
        )


def _parse(line: str) -> Check | None:
    """The result that a line has; None for the output of libraries."""
    if not line.startswith('{"name":'):
        return None
    return Check(**json.loads(line))
