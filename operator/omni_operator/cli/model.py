"""`drl model`: make the project's own models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from omni_operator.cli.common import run_module

app = typer.Typer(no_args_is_help=True, help="Make the project's own models, offline.")


@app.command()
def tiny(
    family: Annotated[str, typer.Argument(help="sd3")],
    path: Annotated[Path, typer.Argument(help="Folder to write.")],
    seed: Annotated[int, typer.Option(help="Seed of its random weights.")] = 0,
) -> None:
    """A tiny random model, for tests."""
    run_module("verl_omni.models", "tiny", family, str(path), "--seed", str(seed))


@app.command()
def shapes(
    path: Annotated[Path, typer.Argument(help="Folder to write.")],
    steps: Annotated[int, typer.Option(help="Training steps.")] = 1000,
    seed: Annotated[int, typer.Option(help="Seed.")] = 0,
) -> None:
    """The example model: it draws what a prompt says about half of the time."""
    run_module("verl_omni.models", "shapes", str(path), "--steps", str(steps), "--seed", str(seed))
