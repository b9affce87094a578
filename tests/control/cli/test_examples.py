"""Every example validates and renders, for this machine and for a cluster, without a network."""

import shutil
from pathlib import Path

import pytest
from ruamel.yaml import YAML
from typer.testing import CliRunner

from omni_operator.api import load_job
from omni_operator.cli.main import app

EXAMPLES = Path(__file__).parents[3] / "examples"
JOBS = sorted(EXAMPLES.glob("*.yaml"))
TINY = "sd3-tiny"  # made by `drl model tiny`, as the example's first lines say


def drl(*arguments: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return result.exit_code, result.output


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The examples with every model that their first lines tell to make."""
    folder = tmp_path_factory.mktemp("examples")
    for path in (*JOBS, EXAMPLES / "prompts"):
        copy = shutil.copytree if path.is_dir() else shutil.copy
        copy(path, folder / path.name)
    for model in (TINY, "shapes-sd3", "shapes-sd3-wrong-colors"):
        (folder / model).mkdir()
        (folder / model / "model_index.json").write_text("{}")
    return folder


def test_there_are_local_and_cluster_examples() -> None:
    assert len(JOBS) >= 6
    assert any(path.stem.endswith("-cluster") for path in JOBS)


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_an_example_validates(path: Path, examples: Path) -> None:
    code, output = drl("validate", examples / path.name)
    if "/" in load_job(path).job.spec.model.base:  # an id of the hub, which only the operator downloads
        assert (code, "is a model id, which only the operator downloads" in output) == (2, True), output
    else:
        valid, *notes = output.splitlines()
        assert (code, valid) == (0, f"{examples / path.name}: {path.stem} is valid")
        # tests/contract/test_examples_compose.py: the example says why it has what is warned of
        assert [line for line in notes if not line.startswith(f"note: {examples / path.name}: spec.")] == []
    code, output = drl("validate", "--cluster", path)
    assert code == 0, output


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_an_example_renders(path: Path) -> None:
    code, output = drl("render", path)
    assert code == 0, output
    assert f"trainer.experiment_name={path.stem}" in output.splitlines()
    result = CliRunner().invoke(app, ["render", "--cluster", str(path)])
    assert result.exit_code == 0, result.output
    assert [body["kind"] for body in YAML(typ="safe", pure=True).load_all(result.stdout)][-1] == "RayJob"


def test_an_example_without_its_model_tells_how_to_create_it(examples: Path, tmp_path: Path) -> None:
    shutil.copytree(examples, tmp_path, ignore=shutil.ignore_patterns(TINY), dirs_exist_ok=True)
    code, output = drl("validate", tmp_path / "sd3-tiny-cpu.yaml")
    assert code == 2
    assert f"`drl model tiny sd3 {tmp_path / TINY}`" in output


@pytest.mark.parametrize("path", [path for path in JOBS if path.stem.endswith("-cluster")], ids=lambda path: path.stem)
def test_a_cluster_example_keeps_its_results_on_a_claim_from_the_examples(path: Path) -> None:
    job = load_job(path).job
    claims = [
        body for file in (EXAMPLES / "claims").glob("*.yaml") for body in YAML(typ="safe", pure=True).load_all(file)
    ]
    assert job.spec.checkpoint.claim_name in [claim["metadata"]["name"] for claim in claims]
    assert {claim["kind"] for claim in claims} == {"PersistentVolumeClaim"}
