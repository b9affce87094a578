"""Commands of the training stack: `drl report` and `drl model` become `python -m verl_omni....`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from . import console, machine, run_folder
from .render import Runs

model = typer.Typer(help="Make models that need no network.", no_args_is_help=True)
PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def report(
    run: Annotated[str, typer.Argument(help="A job's name, or a run folder.", metavar="NAME_OR_DIR")],
    runs: Runs = Path("runs"),
) -> None:
    """Write report.html of a run, finished or not."""
    folder = next((path for path in (Path(run), runs / run) if (path / run_folder.METRICS).is_file()), None)
    if folder is None:
        known = sorted(path.parent.name for path in runs.glob(f"*/{run_folder.METRICS}"))
        console.refuse(f"no run {run!r}; runs in {runs}: {', '.join(known) or 'none'}")
    become("verl_omni.trainer.report", [str(folder)])


@model.command(context_settings=PASS_ON, add_help_option=False)
def tiny(context: typer.Context) -> None:
    """FAMILY PATH: a random model of a few hundred kilobytes in the layout of a family, such as sd3."""
    become("verl_omni.models", ["tiny", *context.args])


@model.command(context_settings=PASS_ON, add_help_option=False)
def shapes(context: typer.Context) -> None:
    """PATH: a small SD3 that is trained here, in minutes, to draw coloured shapes."""
    become("verl_omni.models", ["shapes", *context.args])


def become(module: str, arguments: Sequence[str]) -> NoReturn:
    """Turn this process into `python -m module`, so that signals and exit code are its own."""
    if missing := machine.missing_stack():
        console.refuse(f"{', '.join(missing)} not installed: pip install 'omni-operator[train]'", console.FAILED)
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])
