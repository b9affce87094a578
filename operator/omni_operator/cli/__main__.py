"""`python -m omni_operator.cli`."""

from omni_operator.cli.main import app

app()
