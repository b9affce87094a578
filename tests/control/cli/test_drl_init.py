"""`drl init`: a job to begin with."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from omni_operator.api import load_job
from omni_operator.cli.init import FAMILIES, PROMPTS, modalities
from omni_operator.cli.main import app

JUDGED = ("genrm_ocr", "unified_reward")


def init(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["init", *arguments])


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("reward", ["ocr", "genrm_ocr", "jpeg", "unified_reward"])
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_the_written_job_is_valid_and_has_its_prompts(family: str, reward: str, folder: Path) -> None:
    if reward == "ocr" and "image" not in modalities(family):
        pytest.skip("no scorer of videos")
    (folder / "weights").mkdir()
    done = init(family, "--reward", reward, "--model", "./weights")
    assert done.exit_code == 0, done.stderr
    name = f"{family}-{reward}".replace("_", "-")
    spec = load_job(folder / f"{name}.yaml").job.spec
    assert [scorer.name for scorer in spec.reward.scorers] == [reward]
    assert spec.model.base == "./weights"
    assert (spec.reward.model is not None) == (reward in JUDGED)
    for use, file in PROMPTS.items():
        assert getattr(spec.data, use) == (file,)
        assert len((folder / file).read_text().splitlines()) >= 6
    cluster = CliRunner().invoke(app, ["validate", "--cluster", f"{name}.yaml"])
    assert cluster.exit_code == 0, cluster.stderr


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_without_a_reward_the_job_has_one_that_judges_the_samples(family: str, folder: Path) -> None:
    done = init(family)
    assert done.exit_code == 0, done.stderr
    (job,) = folder.glob("*.yaml")
    assert load_job(job).job.spec.reward.scorers[0].name == ("pickscore" if family == "wan22-5b" else "ocr")


def test_paths_are_those_of_the_working_directory_wherever_the_job_is_written(folder: Path) -> None:
    for name in ("jobs", "weights", "rewards"):
        (folder / name).mkdir()
    absolute = str(folder / "weights")
    bases = {"weights": "../weights", "./weights": "../weights", absolute: absolute, "owner/name": "owner/name"}
    for number, (model, base) in enumerate(bases.items()):
        job = f"jobs/{number}.yaml"
        assert init("sd35", "--reward", "rewards/own.py", "--model", model, "--out", job).exit_code == 0
        spec = load_job(folder / job).job.spec
        function = spec.reward.scorers[0].function
        assert function is not None and (function.path, spec.model.base) == ("../rewards/own.py", base)


def test_comments_of_the_example_are_kept(folder: Path) -> None:
    assert init("sd35").exit_code == 0
    text = (folder / "sd35-ocr.yaml").read_text()
    assert text.startswith("# Made by `drl init sd35`")
    assert "use_kl_loss=true   # holds the adapter to the base model" in text
    assert "judge" not in text


def test_an_own_function_is_the_reward(folder: Path) -> None:
    assert init("wan22-5b", "--reward", "score.py", "--out", "video.yaml").exit_code == 0
    scorer = load_job(folder / "video.yaml").job.spec.reward.scorers[0]
    assert scorer.function is not None and scorer.function.path == "score.py"


def test_no_file_is_overwritten(folder: Path) -> None:
    (folder / "prompts.jsonl").write_text("mine")
    (folder / "sd35-jpeg.yaml").write_text("mine")
    done = init("sd35")
    assert (done.exit_code, (folder / "prompts.jsonl").read_text()) == (0, "mine")
    assert "prompts.jsonl exists, and is kept" in done.stderr
    done = init("sd35", "--reward", "jpeg")
    assert (done.exit_code, (folder / "sd35-jpeg.yaml").read_text()) == (2, "mine")
    assert "sd35-jpeg.yaml exists: remove it, or give --out FILE.yaml" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("sd3",), "no model family 'sd3'; choose qwen-image, sd35, wan22-5b"),
        (("sd35", "--reward", "jpg"), "no scorer 'jpg'; choose brightness"),
        (("wan22-5b", "--reward", "ocr"), "the scorer ocr cannot judge samples of wan22-5b; choose"),
        (("sd35", "--reward", "videoalign"), "the scorer videoalign cannot judge samples of sd35; choose"),
        (("wan22-5b", "--reward", "videoalign"), "the scorer videoalign needs template_path, video_fps: write it into"),
        (("sd35", "--reward", "aesthetic"), "needs head_path: write it into the job later; choose"),
        (("sd35", "--out", "no/folder/job.yaml"), "cannot write no/folder/job.yaml"),
    ],
)
def test_what_cannot_be_written_is_said_in_a_line(arguments: tuple[str, ...], problem: str, folder: Path) -> None:
    done = init(*arguments)
    assert done.exit_code == 2
    assert problem in done.stderr and len(done.stderr.splitlines()) == 1
    assert list(folder.iterdir()) == []
