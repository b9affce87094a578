"""The `drl` program, also installed as the kubectl plug-in `kubectl drl`."""

from typing import Annotated

import typer

from . import console
from .machine import new_models
from .machine.training_stack import DISTRIBUTION
from .program import Program

app = typer.Typer(
    name="drl",
    cls=Program,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: it reads the same in a pipe, in a log and without color
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        console.say(f"drl {version(DISTRIBUTION)}")
        raise typer.Exit


@app.callback()
def drl(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Fine-tune diffusion models with reinforcement learning, on this machine or on Kubernetes.

    Exit codes: 0 success; 1 the run failed, doctor found something missing, or the job does not fit; 2 nothing was
    started: invalid job, invalid option, missing file or installation; 130 stopped by the user.
    """


app.add_typer(new_models.app, name="model")

if __name__ == "__main__":
    app()
