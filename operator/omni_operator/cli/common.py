"""What the commands share."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import typer
from rich.console import Console

from omni_operator.api.job import DiffusionRLJob
from omni_operator.api.load import InvalidJob, load

USAGE_ERROR = 2
errors = Console(stderr=True, highlight=False, soft_wrap=True)


def job_or_exit(path: Path) -> DiffusionRLJob:
    """The job in a file, or every error on standard error and exit code 2."""
    try:
        return load(path)
    except InvalidJob as error:
        errors.print(str(error), markup=False)
        raise typer.Exit(USAGE_ERROR) from error


def run_module(module: str, *arguments: str) -> None:
    """Run a module of the training package in a process of its own, and exit with its code."""
    if find_spec(module.partition(".")[0]) is None or find_spec("torch") is None:
        errors.print("the training stack is not installed: run `make setup`, or pip install 'omni-operator[train]'")
        raise typer.Exit(1)
    raise typer.Exit(subprocess.call([sys.executable, "-m", module, *arguments]))
