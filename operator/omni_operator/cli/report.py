"""`drl report`: the report of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import console, run_folder, training_stack
from .render import Runs


def report(
    run: Annotated[str, typer.Argument(help="A job's name, or a run folder.", metavar="NAME_OR_DIR")],
    runs: Runs = Path("runs"),
) -> None:
    """Write report.html of a run, finished or not."""
    folder = next((path for path in (Path(run), runs / run) if (path / run_folder.METRICS).is_file()), None)
    if folder is None:
        known = sorted(path.parent.name for path in runs.glob(f"*/{run_folder.METRICS}"))
        console.refuse(f"no run {run!r}; runs in {runs}: {', '.join(known) or 'none'}")
    training_stack.exec_module("verl_omni.trainer.report", [str(folder)])
