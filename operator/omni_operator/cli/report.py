"""`drl report`: make the report of a run again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from omni_operator.cli.common import USAGE_ERROR, errors, run_module


def report(
    run: Annotated[str, typer.Argument(help="A run folder, or the name of a job.")],
    runs: Annotated[Path, typer.Option(help="Where run folders are.")] = Path("runs"),
) -> None:
    """Write report.html of a run folder."""
    folder = Path(run) if Path(run).is_dir() else runs / run
    if not folder.is_dir():
        errors.print(f"no run folder {folder}", markup=False)
        raise typer.Exit(USAGE_ERROR)
    run_module("verl_omni.trainer.report", str(folder))
