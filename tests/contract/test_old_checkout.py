"""Programs that are started in a checkout of the reference import its package, unless they are told not to."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # new interpreters

ROOT = Path(__file__).parents[2]
OLD = "this is the package of the old checkout"
TRAINER = (sys.executable, "-m", "verl_omni.trainer.main_diffusion", "data.train_files=x")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    package = tmp_path / "verl_omni" / "trainer"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    (package / "main_diffusion.py").write_text(f"raise SystemExit({OLD!r})\n")
    return tmp_path


def said(command: tuple[str, ...], folder: Path, **variables: str) -> str:
    unset = {name: value for name, value in os.environ.items() if name not in ("PYTHONSAFEPATH", "PYTHONPATH")}
    environment = unset | {"VERL_PLATFORM": "cpu"} | variables
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    return done.stdout + done.stderr


def test_the_trainer_of_the_old_checkout_is_started_there(checkout: Path) -> None:
    assert OLD in said(TRAINER, checkout)
    job = str(ROOT / "examples" / "red-grpo.yaml")
    assert OLD in said((sys.executable, "-P", "-m", "omni_operator.cli", "run", "--plain", job), checkout)


def test_with_a_safe_path_the_installed_trainer_is_started(checkout: Path) -> None:
    assert "actor_rollout_ref.model.path" in said(TRAINER, checkout, PYTHONSAFEPATH="1")
    assert "actor_rollout_ref.model.path" in said(TRAINER, checkout.parent)
