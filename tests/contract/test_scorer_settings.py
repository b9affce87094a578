"""The settings that a job may give a built-in scorer are the scorer's own arguments, with the same defaults."""

import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from omni_operator import plan
from omni_operator.api import read_job
from omni_operator.api.spec.reward import Http
from omni_operator.api.spec.scorers import builtin_scorers, settings_model
from verl_omni.reward_loop.rewards import SCORERS, doc_line, get_scorer
from verl_omni.reward_loop.scorer_signature import setting_fields, value_problems

EXAMPLE = Path(__file__).parents[2] / "examples" / "red-grpo.yaml"


@pytest.mark.parametrize("scorer", SCORERS)
def test_a_scorer_takes_a_sample_or_lists_of_samples(scorer: str) -> None:
    arguments = ["data_source", "solution_image", "ground_truth", "extra_info"]
    first = list(inspect.signature(get_scorer(scorer)).parameters)[:4]
    assert first in (arguments, [f"{argument}s" for argument in arguments])
    assert doc_line(scorer).endswith(".")


@pytest.mark.parametrize("scorer", builtin_scorers())
def test_a_job_may_write_the_default_of_each_setting(scorer: str) -> None:
    fields = setting_fields(get_scorer(scorer))
    values = {name: default for name, (_, default) in fields.items() if default is not ...}
    assert list(value_problems(get_scorer(scorer), values)) == []


def test_scorers_are_read_without_machine_learning_libraries() -> None:
    code = (
        "import sys\n"
        "sys.modules.update(dict.fromkeys(('torch', 'numpy', 'PIL', 'ray', 'httpx2', 'transformers', 'tenacity')))\n"
        "from omni_operator.api.spec.scorers import builtin_scorers, settings_model\n"
        "from verl_omni.reward_loop.rewards import SCORERS, modality\n"
        "names = builtin_scorers()\n"
        "print([settings_model(name).__name__ for name in names] == [*names], len([*map(modality, SCORERS)]))"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert child.stdout.split() == ["True", str(len(SCORERS))], child.stderr


def install(folder: Path, package: str, **scorers: str) -> None:
    """Write the metadata of a package that has scorers."""
    metadata = folder / f"{package}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    points = "".join(f"{name} = {path}\n" for name, path in scorers.items())
    (metadata / "entry_points.txt").write_text(f"[verl_omni.scorers]\n{points}")


@pytest.fixture
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package with the scorer `sharpness` and with some that cannot score, for processes that this test starts."""
    (tmp_path / "sharp.py").write_text(
        "from __future__ import annotations\n"
        "from typing import TYPE_CHECKING, Annotated\n"
        "from pydantic import Field\n"
        "if TYPE_CHECKING:\n"
        "    from torch import Tensor\n"
        "def compute_score(data_source, solution_image: Tensor, ground_truth, extra_info,\n"
        "                  scale: Annotated[float, Field(gt=0)] = 1.0) -> float:\n"
        "    'Mean difference of neighbouring pixels.'\n"
        "    return scale * float(solution_image.float().diff(dim=-1).abs().mean())\n"
    )
    (tmp_path / "endless.py").write_text("def compute_score(solution_image):\n    yield 1.0\n")
    (tmp_path / "raising.py").write_text("raise RuntimeError('no license')\n")
    (tmp_path / "untyped.py").write_text(
        "from __future__ import annotations\ndef compute_score(solution_image, mask: np.ndarray = None): return 1.0\n"
    )
    install(
        tmp_path,
        "sharp",
        sharpness="sharp",
        endless="endless",
        raising="raising",
        absent="no_such_module",
        misnamed="sharp:compute_scor",
        made="fractions:Fraction",
        untyped="untyped",
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


@pytest.mark.usefixtures("_installed")
@pytest.mark.parametrize(
    ("own", "problem"),
    [
        ("name: sharpness, settings: {scale: 2}", None),
        ("name: sharpness, settings: {scale: 0}", "scale: 0 must be more than 0"),
        ("name: sharpness, settings: {scael: 2}", "did you mean 'scale'?"),
        ("name: endless", "spec.reward.scorers[0].name: the scorer endless cannot score: it has a `yield`"),
        ("name: raising, pool: {}", "raising cannot be loaded from raising:compute_score: RuntimeError: no license"),
        ("name: absent", "No module named 'no_such_module'; import libraries inside the function"),
        ("name: misnamed", "sharp:compute_scor: AttributeError: module 'sharp' has no attribute 'compute_scor'"),
        ("name: made", "made is no function: fractions:Fraction is <class 'fractions.Fraction'>; name a function"),
        (
            "name: untyped",
            "untyped:compute_score has the setting mask of the type np.ndarray, which cannot be evaluated",
        ),
    ],
)
def test_a_job_names_a_scorer_of_an_installed_package(own: str, problem: str | None) -> None:
    job = EXAMPLE.with_stem("red-grpo-cluster")
    command = [sys.executable, "-m", "omni_operator.cli", "validate", "--cluster", str(job)]
    scorers = ["--set", f"spec.reward.scorers=[{{{own}}}]"]
    validated = subprocess.run([*command, *scorers], capture_output=True, text=True, check=False)
    assert validated.returncode == (2 if problem else 0), validated.stderr
    assert (problem or "") in validated.stderr


@pytest.mark.usefixtures("_installed")
def test_the_trainer_runs_a_scorer_of_an_installed_package() -> None:
    code = (
        "import torch\n"
        "from verl_omni.reward_loop.rewards import get_scorer, setting_problems\n"
        "stripes = torch.tensor([0, 255], dtype=torch.uint8).repeat(3, 4, 2)\n"
        "score = get_scorer('sharpness')\n"
        "print(score('d', stripes, '', {}, scale=2.0), setting_problems('sharpness', {'scale': -1}))\n"
        "from verl_omni.trainer.settings import configuration, reward_settings\n"
        "names = ['actor_rollout_ref.model.path=m', 'data.train_files=p', 'trainer.total_training_steps=1']\n"
        "reward = configuration.load([*names, 'reward.scorer=misnamed']).reward\n"
        "print(*reward_settings.find_problems(reward))"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    scored, problem = child.stdout.splitlines()
    assert scored.startswith("510.0 ['scale: -1 "), child.stderr
    assert problem.startswith("reward.scorer: misnamed cannot be loaded from sharp:compute_scor: AttributeError")


@pytest.mark.usefixtures("_installed")
def test_drl_init_offers_installed_scorers_that_can_be_loaded() -> None:
    command = [sys.executable, "-m", "omni_operator.cli", "init", "sd35", "--reward", "raising"]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "the scorer raising cannot be loaded" in refused.stderr and "sharpness" in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.usefixtures("_installed")
def test_a_name_of_two_installed_packages_is_refused(tmp_path: Path) -> None:
    install(tmp_path, "blunt", sharpness="blunt")
    code = "from verl_omni.reward_loop.rewards import get_scorer; get_scorer('sharpness')"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    (message,) = [line for line in child.stderr.splitlines() if line.startswith("ValueError")]
    assert "two scorers sharpness, " in message
    assert " sharp:compute_score" in message and " blunt:compute_score" in message


@pytest.mark.parametrize("name", ["http", "http_batch"])
def test_the_fields_of_a_reward_server_are_the_settings_of_its_scorers(name: str) -> None:
    fields = {name.removesuffix("_seconds"): info for name, info in Http.model_fields.items() if name != "batched"}
    scorer = {name: default for name, (_, default) in setting_fields(get_scorer(name)).items()}
    assert fields.keys() == scorer.keys()
    defaults = {name: info.default for name, info in fields.items() if name != "url"}
    defaults["protocol"] = defaults["protocol"].lower()  # values of the job's API are in PascalCase
    assert defaults == {name: default for name, default in scorer.items() if name != "url"}


@pytest.mark.parametrize("quality", [1, 100])
def test_the_encoder_takes_both_ends_of_the_range_of_jpeg_quality(quality: int) -> None:
    import torch

    settings_model("jpeg").model_validate({"quality": quality})
    noise = torch.randint(0, 256, (3, 32, 32), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    score = get_scorer("jpeg")
    sizes = [score("d", noise, "", {}, quality=value) for value in (quality, 50)]
    assert (sizes[0] > sizes[1]) is (quality < 50)


@pytest.mark.parametrize("required", [True, False])
def test_the_question_of_a_judge_reaches_the_trainer_as_it_was_written(required: bool) -> None:
    from verl_omni.trainer.settings import configuration, reward_settings

    judge_settings = {
        "base_url": "https://judge:8000/v1",
        "model": "owner/name-7B",
        "lowest": -1.5,
        "template": "Rate {prompt}, \"as is\": it's 'fine' = [1, 2], ${x} \\ {highest}.",
    }
    scorer = {"name": "unified_reward", "settings": judge_settings, "required": required}
    text = EXAMPLE.read_text(encoding="utf-8")
    job = plan.resolve_paths(
        read_job(text, "job.yaml", [f"spec.reward.scorers={json.dumps([scorer])}"]).job, "/examples"
    )
    reward = configuration.load(plan.render_overrides(job, plan.local_layout(job, "/runs"))).reward
    kwargs = reward.scorer_kwargs if required else reward.reward_functions.unified_reward
    assert OmegaConf.to_container(kwargs, resolve=True).items() >= judge_settings.items()
    assert reward_settings.find_problems(reward) == []
