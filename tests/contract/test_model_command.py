"""`drl model` passes on what the trainer's program takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from omni_operator.cli.machine.new_models import PROMPT_FILES, Family


def test_the_families_are_those_of_the_trainers_program() -> None:
    from verl_omni.models.__main__ import FAMILIES

    assert tuple(family.value for family in Family) == FAMILIES


def test_the_prompt_files_are_those_that_are_written(tmp_path: Path) -> None:
    from verl_omni.models import __main__ as program

    assert program.main(["prompts", str(tmp_path)]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(PROMPT_FILES)


@pytest.mark.slow  # imports torch in a process of its own
def test_drl_makes_a_tiny_model(tmp_path: Path) -> None:
    import subprocess
    import sys

    command = [sys.executable, "-m", "omni_operator.cli", "model", "tiny", "sd3", str(tmp_path / "new"), "--seed", "3"]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    assert (tmp_path / "new" / "model_index.json").is_file()
