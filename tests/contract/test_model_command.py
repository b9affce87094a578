"""`drl model` passes on what the trainer's program takes."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from omni_operator.cli.machine.new_models import PROMPT_FILES
from omni_operator.cli.main import app
from verl_omni.models.tiny import MAKERS


def test_the_prompt_files_are_those_that_are_written(tmp_path: Path) -> None:
    from verl_omni.models import __main__ as program

    assert program.main(["prompts", str(tmp_path)]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(PROMPT_FILES)


def test_an_unknown_family_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["model", "tiny", "sd4", str(tmp_path / "new")])
    assert done.exit_code == 2 and f"no model family 'sd4'; choose {', '.join(sorted(MAKERS))}" in done.stderr
    assert not (tmp_path / "new").exists()


@pytest.mark.slow  # imports torch in its own process
def test_drl_makes_a_tiny_model(tmp_path: Path) -> None:
    import subprocess
    import sys

    command = [sys.executable, "-m", "omni_operator.cli", "model", "tiny", "sd3", str(tmp_path / "new"), "--seed", "3"]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    assert (tmp_path / "new" / "model_index.json").is_file()
