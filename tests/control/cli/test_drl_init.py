"""`drl init`: a job to begin with."""

import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from omni_operator.api import load_job
from omni_operator.cli.init import FAMILIES, INPUT_IMAGE, PROMPTS, modalities
from omni_operator.cli.main import app
from verl_omni.pipelines.registry import FOLDERS, family_sizes

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
        rows = [json.loads(line) for line in (folder / file).read_text().splitlines()]
        assert len(rows) >= 6
        edits = FOLDERS[FAMILIES[family]].input_images
        assert all(row.get("images") == ([INPUT_IMAGE] if edits else None) for row in rows)
        assert (folder / INPUT_IMAGE).exists() is edits
    cluster = CliRunner().invoke(app, ["validate", "--cluster", f"{name}.yaml"])
    assert cluster.exit_code == 0, cluster.stderr


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_without_a_reward_the_job_has_one_that_judges_the_samples(family: str, folder: Path) -> None:
    done = init(family)
    assert done.exit_code == 0, done.stderr
    (job,) = folder.glob("*.yaml")
    assert load_job(job).job.spec.reward.scorers[0].name == ("pickscore" if family == "wan22-5b" else "ocr")


def test_every_folder_of_a_family_is_offered() -> None:
    assert sorted(FAMILIES.values()) == sorted(FOLDERS)
    assert {"flux", "flux2-klein"} <= FAMILIES.keys()


@pytest.mark.parametrize("family", sorted(name for name, each in FAMILIES.items() if FOLDERS[each].example is None))
def test_a_family_without_an_example_gets_its_own_model_and_says_whose_settings_it_has(
    family: str, folder: Path
) -> None:
    assert init(family, "--out", "job.yaml").exit_code == 0
    spec = load_job(folder / "job.yaml").job.spec
    family_folder = FOLDERS[FAMILIES[family]]
    assert spec.model.base in family_sizes(FAMILIES[family]).RELEASED
    assert {name: getattr(spec.rollout.pipeline, name) for name in family_folder.pipeline} == family_folder.pipeline
    text = (folder / "job.yaml").read_text()
    assert "# The settings come from a recipe for Stable Diffusion 3 and 3.5, and are not tuned for this model." in text


def test_a_new_folder_is_offered_without_further_changes(folder: Path) -> None:
    new = folder / "new_model"
    new.mkdir()
    (new / "__init__.py").write_text(
        "from verl_omni.pipelines.description import FamilyDescription, family_in\n"
        "FAMILY = FamilyDescription(\n"
        "    {'NewPipeline': family_in(__name__, 'NewRollout')}, 'New', {}, pipeline={'guidance': 2.5})\n"
    )
    (new / "sizes.py").write_text("RELEASED = {'owner/New-1': None}\n")
    program = (
        f"import verl_omni.pipelines; verl_omni.pipelines.__path__.append({str(folder)!r})\n"
        "from omni_operator.cli.main import app; app(prog_name='drl')"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", program, "init", "new-model"],
        env={**os.environ, "PYTHONPATH": f"{root / 'operator'}:{root}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    spec = load_job(folder / "new-model-ocr.yaml").job.spec
    assert (spec.model.base, spec.rollout.pipeline.guidance) == ("owner/New-1", 2.5)


def test_the_input_image_has_the_size_of_the_samples(folder: Path) -> None:
    assert init("qwen-image-edit", "--out", "job.yaml").exit_code == 0
    pipeline = load_job(folder / "job.yaml").job.spec.rollout.pipeline
    image = (folder / INPUT_IMAGE).read_bytes()
    assert image.startswith(b"\x89PNG") and struct.unpack(">II", image[16:24]) == (pipeline.width, pipeline.height)


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
    (folder / "weights" / "sd35").mkdir()
    assert init("sd35", "--model", "weights/sd35", "--out", "here.yaml").exit_code == 0
    assert load_job(folder / "here.yaml").job.spec.model.base_is_folder, "and not the id of a model on the hub"


def test_comments_of_the_example_are_kept(folder: Path) -> None:
    assert init("sd35").exit_code == 0
    text = (folder / "sd35-ocr.yaml").read_text()
    assert text.startswith("# Made by `drl init sd35`")
    assert "use_kl_loss=true   # holds the adapter to the base model" in text
    assert "judge" not in text


def test_an_own_function_is_the_reward(folder: Path) -> None:
    assert init("wan22-5b", "--reward", "score.py", "--out", "video.yaml").exit_code == 0
    scorer = load_job(folder / "video.yaml").job.spec.reward.scorers[0]
    assert scorer.function is not None and scorer.function.path == "./score.py"


def test_no_file_is_overwritten(folder: Path) -> None:
    (folder / "prompts.jsonl").write_text("mine")
    (folder / "sd35-jpeg.yaml").write_text("mine")
    done = init("sd35")
    assert (done.exit_code, (folder / "prompts.jsonl").read_text()) == (0, "mine")
    assert "prompts.jsonl exists, and is kept" in done.stderr
    done = init("sd35", "--reward", "jpeg")
    assert (done.exit_code, (folder / "sd35-jpeg.yaml").read_text()) == (2, "mine")
    assert "sd35-jpeg.yaml exists: remove it, or give --out FILE.yaml" in done.stderr
    done = init("sd35", "--out", str(folder))
    assert done.exit_code == 2 and f"{folder} is a folder: give --out FILE.yaml" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("sd3",), f"no model family 'sd3'; choose {', '.join(sorted(FAMILIES))}"),
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
