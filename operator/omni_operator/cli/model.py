"""`drl model`: models and prompts that need no network."""

from __future__ import annotations

import typer

from . import training_stack

MAKERS = "verl_omni.models"
PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}

app = typer.Typer(help="Make models and prompts that need no network.", no_args_is_help=True)


@app.command(context_settings=PASS_ON, add_help_option=False)
def tiny(context: typer.Context) -> None:
    """FAMILY PATH: a random model of a few hundred kilobytes in the layout of a family, such as sd3."""
    training_stack.exec_module(MAKERS, ["tiny", *context.args])


@app.command(context_settings=PASS_ON, add_help_option=False)
def shapes(context: typer.Context) -> None:
    """PATH: a small SD3 that is trained here, in minutes, to draw coloured shapes."""
    training_stack.exec_module(MAKERS, ["shapes", *context.args])


@app.command(context_settings=PASS_ON, add_help_option=False)
def prompts(context: typer.Context) -> None:
    """PATH: the prompts of the shapes."""
    training_stack.exec_module(MAKERS, ["prompts", *context.args])
