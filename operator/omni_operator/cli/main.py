"""`drl`, and `kubectl drl`: run, render, validate and look at jobs."""

from __future__ import annotations

import typer

from . import model
from .doctor import doctor
from .render import render
from .report import report
from .run import run
from .validate import validate

app = typer.Typer(
    name="drl",
    help="Reinforcement learning of diffusion models, on this machine or on Kubernetes.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (run, render, validate, report, doctor):
    app.command()(command)
app.add_typer(model.app, name="model")

if __name__ == "__main__":
    app()
