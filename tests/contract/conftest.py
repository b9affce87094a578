"""Fixture of tests that run `drl fit` on a real model."""

import contextlib
import io
import subprocess
from typing import Any

import pytest

from omni_operator.cli.machine import fit
from verl_omni.trainer.memory_estimate import __main__ as program


def in_this_process(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
    """Run the program of `drl fit`."""
    assert command[1:3] == ["-m", fit.PROGRAM] == ["-m", program.__name__.removesuffix(".__main__")]
    out = io.StringIO()
    err = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = program.main(command[3:])
    return subprocess.CompletedProcess(command, code, out.getvalue(), err.getvalue())


@pytest.fixture
def _fit_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """`drl fit` starts no interpreter, which would import the trainer again; test_own_family.py runs it as users do."""
    monkeypatch.setattr(subprocess, "run", in_this_process)
