"""`drl convert`: the job on standard output, and on standard error what is not in it."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from omni_operator.api import read_job
from omni_operator.cli.main import app

RECIPE = """\
#!/usr/bin/env bash
# An invented recipe, with what published ones are made of.
ENGINE=${1:-vllm_omni}
DATA=(
    data.train_files=$HOME/data/train.parquet
    data.train_batch_size=32
)
python3 -m verl_omni.trainer.main_diffusion \\
    "${DATA[@]}" \\
    actor_rollout_ref.model.path=stabilityai/stable-diffusion-3.5-medium \\
    actor_rollout_ref.rollout.name=$ENGINE \\
    actor_rollout_ref.rollout.n=16 \\
    actor_rollout_ref.rollout.layered_summon=True \\
    actor_rollout_ref.rollout.tensor_model_parallel_size=1 \\
    reward.custom_reward_function.path=score.py \\
    trainer.experiment_name=sd3_medium \\
    trainer.total_training_steps=300 $@
"""


SGLANG = "reward.reward_model.rollout.name=sglang"


@pytest.mark.parametrize("by_file", [True, False])
def test_a_recipe_becomes_a_job(tmp_path: Path, by_file: bool) -> None:
    (tmp_path / "recipe.sh").write_text(RECIPE)
    done = CliRunner().invoke(app, ["convert", str(tmp_path / "recipe.sh") if by_file else "-"], input=RECIPE)
    assert done.exit_code == 0, done.stderr
    assert done.stdout.startswith(f"# Converted from {'recipe.sh' if by_file else 'standard input'}.\napiVersion: ")
    job = read_job(done.stdout, "job").job
    assert job.metadata.name == "sd3-medium" and job.spec.data.train == ("$HOME/data/train.parquet",)
    assert done.stderr.splitlines() == [
        "note: $HOME is not set in the script, and stays in the job as it is: replace it",
        "note: left out, because they have no effect here: actor_rollout_ref.rollout.layered_summon=True",
    ]


@pytest.mark.parametrize("called", ["recipe.sh", "examples/recipe.sh"])
def test_a_script_that_calls_another_one_with_more_settings_becomes_a_job(tmp_path: Path, called: str) -> None:
    """The other script is next to it, or the path begins in a folder above."""
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples/recipe.sh").write_text(RECIPE)
    wrapper = tmp_path / "examples/mine.sh"
    wrapper.write_text(f'source common.sh\nbash {called} vllm_omni trainer.total_training_steps=7 "$@"\n')
    done = CliRunner().invoke(app, ["convert", str(wrapper)])
    assert done.exit_code == 1, "the recipe's own $@ has its first argument too"
    assert read_job(done.stdout, "job").job.spec.trainer.total_steps == 7
    assert f"note: read too, because the script calls it: {tmp_path / 'examples/recipe.sh'}" in done.stderr
    assert "note: not found, so that variables which it sets are not known: common.sh" in done.stderr
    assert "note: left out: vllm_omni: is not an assignment name=value" in done.stderr


def test_another_script_that_cannot_be_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipe.sh").write_bytes(b"\xff")
    done = CliRunner().invoke(app, ["convert", "-"], input="bash recipe.sh trainer.total_training_steps=7")
    assert (done.exit_code, done.stderr) == (2, f"{tmp_path / 'recipe.sh'}: not a text file in UTF-8\n")


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"\xff\n", "not a text file in UTF-8"), (b"", "the script does not start verl_omni.trainer.main_diffusion")],
)
def test_a_script_that_cannot_be_read_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "recipe.sh").write_bytes(content)
    done = CliRunner().invoke(app, ["convert", str(tmp_path / "recipe.sh")])
    assert (done.exit_code, done.stderr) == (2, f"{tmp_path / 'recipe.sh'}: {said}\n")
    done = CliRunner().invoke(app, ["convert", "-"], input=content)
    assert (done.exit_code, done.stderr) == (2, f"<stdin>: {said}\n")


def test_what_is_not_in_the_job_is_not_said_to_stay_there() -> None:
    """A folder of results is left out, and the job's name has letters only."""
    script = RECIPE.replace("$HOME/data/", "").replace("sd3_medium", "sd3_$(date +%F)")
    script = script.replace("$@", 'trainer.default_local_dir="$HOME/checkpoints"')
    done = CliRunner().invoke(app, ["convert", "-"], input=script)
    assert done.exit_code == 0, done.stderr
    assert read_job(done.stdout, "job").job.metadata.name == "sd3"
    assert done.stderr.splitlines() == [
        "note: $(date +%F) is known only when the script runs, and is left out of the job's name: give each run "
        "its own name",
        "note: left out, because they have no effect here: actor_rollout_ref.rollout.layered_summon=True, "
        "trainer.default_local_dir=$HOME/checkpoints",
    ]


def test_what_depends_on_a_condition_is_named_with_its_line() -> None:
    backend = "actor_rollout_ref.model.attn_backend"
    choice = 'ATTENTION=native\n[ "$DEVICE" = npu ] && ATTENTION=_native_npu\n'
    script = choice + RECIPE.replace("$@", f"{backend}=$ATTENTION")
    done = CliRunner().invoke(app, ["convert", "-"], input=script)
    assert done.exit_code == 0 and f"- {backend}=$ATTENTION\n" in done.stdout
    note = "note: $ATTENTION depends on line 2 of the script, and stays in the job as it is: replace it"
    assert note in done.stderr.splitlines()


def test_settings_that_only_a_condition_appends_are_left_out_with_the_reason() -> None:
    choice = 'MORE=(data.seed=5)\n[ "$DEVICE" = npu ] && MORE+=(trainer.device=npu)\n'
    done = CliRunner().invoke(app, ["convert", "-"], input=choice + RECIPE.replace("$@", '"${MORE[@]}"'))
    assert done.exit_code == 1 and read_job(done.stdout, "job").job.spec.seed == 5
    assert "note: left out: ${MORE[@]}: is known only when the script runs; write the settings" in done.stderr


def test_what_is_not_supported_is_named_in_the_job_too_and_the_exit_code_says_so() -> None:
    done = CliRunner().invoke(app, ["convert", "-"], input=RECIPE.replace("$@", SGLANG))
    assert done.exit_code == 1
    assert "# Not supported here, and left out:\n#   " + SGLANG + ": sglang is not" in done.stdout
    assert f"note: left out: {SGLANG}: sglang is not supported; write vllm" in done.stderr
    read_job(done.stdout, "job")


def test_a_job_that_is_not_complete_is_printed_with_what_is_missing() -> None:
    done = CliRunner().invoke(app, ["convert", "-"], input="python -m verl_omni.trainer.main_diffusion data.seed=1")
    assert done.exit_code == 1 and "kind: DiffusionRLJob" in done.stdout
    assert "the job: spec.model" in done.stderr or "spec.model" in done.stderr


@pytest.mark.parametrize(
    ("url", "is_local"),
    [
        ("http://localhost:19082", True),
        ("http://127.0.0.1:8000/v1/score", True),
        ("http://localhost", True),
        ("http://localhost.example.org/x", False),
        ("http://scores:19082", False),
        ("http://127.0.0.1.nip.io/", False),
    ],
)
def test_a_server_on_the_machine_of_the_script_is_named(url: str, is_local: bool) -> None:
    scorer = "reward.reward_functions.ocr={path: verl_omni/utils/reward_score/http_scorer_client.py, server_url: %s}"
    recipe = RECIPE.replace("reward.custom_reward_function.path=score.py", f'"{scorer % f"{url!r}"}"')
    done = CliRunner().invoke(app, ["convert", "-"], input=recipe)
    assert done.exit_code == 0 and url in done.stdout, done.stderr
    assert (f"note: {url} is in each pod on a cluster: write the server's address there" in done.stderr) == is_local
