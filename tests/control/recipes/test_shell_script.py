"""Recipes as shell scripts: the arguments of the trainer are those that bash would pass."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from omni_operator.recipes import RecipeError, read_script

CALL = "python3 -m verl_omni.trainer.main_diffusion"
SCRIPTS = {
    "continued lines": f"{CALL} \\\n    a=1 \\\n    b=2",
    "quotes": f"""{CALL} a="['x', 'y']" b='["console", "wandb"]' c="x y" d=it\\'s""",
    "comments": f"# first\n{CALL} a=1 # {CALL}\n# {CALL} b=2\n",
    "variables": f"N=3\nexport PATH_OF=data/x.parquet M=4\n{CALL} a=$N b=${{PATH_OF}} c=x${{M}}y",
    "defaults": f"{CALL} a=${{MISSING_HERE:-7}} b=${{MISSING_HERE-8}} c=${{1:-vllm_omni}}",
    "the default of a default": f"N=3\n{CALL} a=${{MISSING_HERE:-$N}}",
    "arrays": f"DATA=(\n    a=1   # one\n    'b=[1, 2]'\n)\nMORE=(c=3)\n{CALL} \"${{DATA[@]}}\" d=4 ${{MORE[@]}}",
    "the script's own arguments": f'{CALL} a=1 "$@"\n',
    "variables of the environment": f"CUDA_VISIBLE_DEVICES=0,1 PYTHONUNBUFFERED=1 {CALL} a=1",
    "other statements": f"set -x\nif [ -d . ]; then\n    mkdir -p x && cd x\nfi\n{CALL} a=1 2>&1 | cat\necho b=2",
    "interpolation of Hydra": f"{CALL} 'a=${{trainer.seed}}' b=1",
    "several lines in quotes": f"{CALL} a='first\nsecond' b=1",
}


def passed_by_bash(script: str, folder: Path) -> list[str]:
    """The arguments that bash passes; `python3` is a program that prints them."""
    (folder / "bin").mkdir()
    program = folder / "bin" / "python3"
    program.write_text('#!/bin/sh\nshift 2\nfor each in "$@"; do printf "%s\\0" "$each"; done > "$OUT"\n')
    program.chmod(0o755)
    environment = {"PATH": f"{folder / 'bin'}:/usr/bin:/bin", "OUT": str(folder / "out")}
    subprocess.run(["bash", "-c", script], cwd=folder, env=environment, check=True, capture_output=True)
    return (folder / "out").read_text().split("\0")[:-1]


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize("name", SCRIPTS)
def test_the_arguments_are_those_of_bash(name: str, tmp_path: Path) -> None:
    call = read_script(SCRIPTS[name])
    assert [word for word in call.arguments if "=" in word] == passed_by_bash(SCRIPTS[name], tmp_path)
    assert call.unknown == ()


@pytest.mark.parametrize(
    ("arguments", "unknown"),
    [
        ("a=$HOME/x b=${NAME}", ("$HOME", "${NAME}")),
        ("a=$(nproc --all) b=2", ("$(...)",)),
        ('a="$(nproc)"', ("$(nproc)",)),
    ],
)
def test_what_is_known_only_when_the_script_runs_is_named(arguments: str, unknown: tuple[str, ...]) -> None:
    assert read_script(f"{CALL} {arguments}").unknown == unknown


def test_a_path_of_the_trainer_is_a_call_too() -> None:
    assert read_script("python verl_omni/trainer/main_diffusion.py a=1").arguments == ("a=1",)


def test_the_trainer_v1_is_the_trainer_with_a_setting() -> None:
    assert read_script(f"{CALL}_v1 a=1").arguments == ("trainer.use_v1=true", "a=1")


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo hello", "the script does not start verl_omni.trainer.main_diffusion"),
        (
            "python3 -m verl.trainer.main_ppo a=1",
            "the script starts verl.trainer.main_ppo; only verl_omni.trainer.main_d",
        ),
        ("python3 -m verl_omni.trainer.main_omni a=1", "the script starts verl_omni.trainer.main_omni; only"),
        (f"{CALL} a=1\n{CALL} a=2", "the script starts the trainer 2 times; keep one call"),
        (f"{CALL} a='1", "not a shell script: no closing quotation"),
    ],
)
def test_another_script_is_refused(script: str, said: str) -> None:
    with pytest.raises(RecipeError) as caught:
        read_script(script)
    assert str(caught.value).startswith(said)
