"""The training stack, which this package never imports: installed versions, and running its programs."""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from typing import NoReturn

from omni_operator.cli import console

DISTRIBUTION = "omni-operator"
INSTALL = "run `make setup` in a clone of the repository"
# verl supports no later one. pip refuses to install it there, and uv does not.
PYTHONS = ((3, 11), (3, 12))
SUPPORTED_PYTHONS = " or ".join(f"{major}.{minor}" for major, minor in PYTHONS)
STACK = ("torch", "ray", "verl", "vllm", "vllm-omni", "diffusers", "transformers", "peft")
# Ctrl-C ends a program that makes a model or a report without a traceback.
_PROGRAM = f"""\
import runpy, sys
try:
    runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
except KeyboardInterrupt:
    sys.exit({console.INTERRUPTED})
"""
_PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;]+)")


def installed_version(distribution: str) -> str | None:
    """Version of an installed distribution, or None."""
    from importlib.metadata import PackageNotFoundError, version  # not for commands that ask for none: it takes long

    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def missing_stack() -> list[str]:
    """What training needs and is missing: distributions, and a Python that they support."""
    python = tuple(sys.version_info[:2])
    others = [] if python in PYTHONS else [f"Python {SUPPORTED_PYTHONS} (this is {python[0]}.{python[1]})"]
    return others + [name for name in STACK if installed_version(name) is None]


def missing_text(missing: Sequence[str]) -> str:
    """The error about `missing_stack`."""
    return f"not installed: {', '.join(missing)}; {INSTALL}"


def pinned() -> dict[str, str]:
    """Versions that this distribution was tested with."""
    from importlib.metadata import PackageNotFoundError, requires

    try:
        lines = requires(DISTRIBUTION) or []
    except PackageNotFoundError:
        return {}  # run from a source tree that is not installed
    return {match[1]: match[2] for line in lines if (match := _PIN.match(line))}


def exec_module(module: str, arguments: Sequence[str]) -> NoReturn:
    """Replace this process by the program `module`, so that signals and the exit code are its own.

    Progress bars of libraries are off: they show internals, such as the shards of a model.
    """
    if missing := missing_stack():
        console.refuse(missing_text(missing))
    sys.stdout.flush()
    environment = {"TQDM_DISABLE": "1", **console.user_environment()}
    os.execve(sys.executable, [sys.executable, "-c", _PROGRAM, module, *arguments], environment)


def run_module(module: str, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run the program `module` in a process that uses no accelerator and no network."""
    offline = {"TQDM_DISABLE": "1", "VERL_PLATFORM": "cpu", "HF_HUB_OFFLINE": "1"}
    environment = {**console.user_environment(), **offline}
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
