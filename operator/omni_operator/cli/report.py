"""`drl report`: write the report of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import console, run_folder, training_stack
from .options import Runs


def report(
    context: typer.Context,
    run: Annotated[str, typer.Argument(help="Name of a job, or path of a run folder.", metavar="NAME_OR_DIR")],
    runs: Runs = Path("runs"),
) -> None:
    """Write report.html of a run, finished or not."""
    if _is_run(Path(run)):
        console.refuse_given(context, ("runs",), f"because {run} is a run folder")
        folder = Path(run)
    else:
        folder = runs / run
    if not _is_run(folder):
        known = sorted(path.parent.name for path in runs.glob(f"*/{run_folder.METRICS}"))
        console.refuse(f"no run {run!r} in {runs}; runs there: {', '.join(known) or 'none'}")
    training_stack.exec_module("verl_omni.trainer.report", [str(folder)])


def _is_run(folder: Path) -> bool:
    return (folder / run_folder.METRICS).is_file()
