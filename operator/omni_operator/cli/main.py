"""`drl`: run, check and look at reinforcement learning of diffusion models."""

from __future__ import annotations

import typer

from omni_operator.cli import doctor, model, render, report, run, validate

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__, pretty_exceptions_enable=False)
app.command("run")(run.run)
app.command("render")(render.render)
app.command("validate")(validate.validate)
app.command("report")(report.report)
app.command("doctor")(doctor.doctor)
app.add_typer(model.app, name="model")

if __name__ == "__main__":
    app()
