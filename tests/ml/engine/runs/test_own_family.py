"""docs/guides/own-family.md: its commands train a family from a user's folder; a wrong velocity stops a run."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "docs" / "guides" / "own-family.md").read_text(encoding="utf-8").partition("\n## Extensions\n")[0]
COMMANDS = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
STEPS = 3  # of the job


def shell(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A command of the page in a user's folder."""
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return subprocess.run(
        ["bash", "-ec", command],
        cwd=folder,
        env={**os.environ, "PATH": programs},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )


def test_the_pages_commands_train_the_family_and_a_wrong_velocity_stops_the_run(tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    shutil.copytree(ROOT / "examples" / "own-family", folder, ignore=shutil.ignore_patterns("__pycache__"))
    make_model, train = COMMANDS
    for command in (make_model, train):
        ended = shell(command, folder)
        assert ended.returncode == 0, (ended.stdout + ended.stderr)[-6000:]
    lines = [json.loads(line) for line in (folder / "runs" / "my-flux" / "metrics.jsonl").read_text().splitlines()]
    trained = [line for line in lines if "actor/grad_norm" in line]
    assert [line["weights/version"] for line in trained] == list(range(1, STEPS + 1))
    for line in trained:
        assert line["actor/grad_norm"] > 0 and line["rollout_corr/max_velocity_rel_diff"] < 1e-5

    (estimate,) = re.findall(r"`(PYTHONPATH=\. drl fit .*?)`", PAGE)
    estimated = shell(estimate, folder)
    assert estimated.returncode == 0, estimated.stdout + estimated.stderr
    assert estimated.stdout.startswith("MyFluxPipeline, ")

    path = folder / "my_flux" / "training.py"
    right = path.read_text()
    path.write_text(right.replace("(timestep / 1000)", "(timestep / 990)"))
    assert path.read_text() != right
    shutil.rmtree(folder / "runs")
    stopped = shell(train, folder)
    assert stopped.returncode != 0
    assert "velocities of engine and trainer differ by 0.0" in stopped.stderr
    assert not list((folder / "runs").rglob("pytorch_lora_weights.safetensors"))
