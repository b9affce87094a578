"""`python3 -m omni_operator.cli` is `drl`."""

from .main import app

app(prog_name="drl")
