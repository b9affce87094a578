"""Fixtures: `drl` as a process, and jobs whose trainer is a script."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

TRAINER = Path(__file__).with_name("scripted_trainer.py")
OPERATOR = Path(__file__).parents[3] / "operator"
JOB = """\
apiVersion: diffusionrl.io/v1alpha1
kind: DiffusionRLJob
metadata:
  name: a-job
spec:
  model: {{base: ./model}}  # a folder next to this file
  data: {{train: [train.jsonl]}}
  reward:
    scorers: [{{name: jpeg}}]
  trainer:
    accelerator: {{vendor: CPU}}
    totalSteps: 3
  algorithm:
    entrypoint: [python3, {trainer}]
    overrides: [test.behave={behave}]
"""

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def write_job(tmp_path: Path) -> Callable[..., Path]:
    """Write a job whose trainer behaves in a way; returns the file."""

    def write(behave: str = "well") -> Path:
        (tmp_path / "model").mkdir(exist_ok=True)
        (tmp_path / "model" / "model_index.json").write_text("{}")
        (tmp_path / "train.jsonl").write_text('{"prompt": "a"}\n')
        path = tmp_path / "job.yaml"
        path.write_text(JOB.format(trainer=TRAINER, behave=behave))
        return path

    return write


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Start `drl` with arguments, in `tmp_path`."""

    def begin(*arguments: str | Path, columns: int = 200, **options: object) -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONPATH": str(OPERATOR), "COLUMNS": str(columns)}
        environment.pop("OMP_NUM_THREADS", None)
        merged: dict[str, object] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, **options}
        command = [sys.executable, "-m", "omni_operator.cli", *map(str, arguments)]
        return subprocess.Popen(command, cwd=tmp_path, env=environment, **merged)

    return begin


@pytest.fixture
def drl(start: Start) -> Callable[..., tuple[int, str]]:
    """Run `drl` to its end: exit code and everything it said."""

    def to_the_end(*arguments: str | Path) -> tuple[int, str]:
        process = start(*arguments)
        output, _ = process.communicate()
        return process.returncode, output

    return to_the_end
