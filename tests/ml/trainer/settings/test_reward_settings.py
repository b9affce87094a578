"""Rewards that would fail, or would silently drop a setting, are refused before anything starts."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.ml import smallest_job
from verl_omni.trainer.settings import configuration, reward_settings

SEVERAL = "reward.reward_manager.name=MultiVisualRewardManager"
ONE = "reward.custom_reward_function"
PARTS = "reward.reward_functions"


@pytest.fixture
def user_file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(
        "raise RuntimeError('this module was run')\n"
        "def judge(solution_image, factor=1.0, **_): ...\n"
        "def strict(solution_image, f=1): ...\n"
        "def each(solution_images):\n    yield from solution_images\n"
        "def placed(solution_image, /): ...\n"
    )
    return path


def problems(*overrides: str) -> list[str]:
    return reward_settings.find_problems(smallest_job.load(*overrides).reward)


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["reward.scorer=color", "reward.scorer_kwargs.color=green"],
        ["reward.scorer=http", "reward.scorer_kwargs={url: 'http://x', attempts: 2}"],
        [SEVERAL, "reward.reward_functions={red: {name: color, weight: 2, color: red}, jpeg: {required: false}}"],
        ["reward.reward_manager.module.path=pkg://mine", "reward.reward_manager.name=Mine", "reward.scorer=x"],
    ],
)
def test_a_valid_reward_is_accepted(overrides: list[str]) -> None:
    assert problems(*overrides) == []


@pytest.mark.parametrize("placeholder", [[], [f"{ONE}.path=pkg://verl_omni.reward_loop.reward_manager.multi"]])
def test_several_scorers_need_no_name_of_their_reward_manager(placeholder: list[str]) -> None:
    """As in the reference (verl-omni#109); `drl convert` takes such a recipe too."""
    overrides = [*smallest_job.REQUIRED, *placeholder, f"{PARTS}={{jpeg: {{}}, red: {{name: color}}}}"]
    reward = configuration.load(overrides).reward
    assert reward.reward_manager.name == "MultiVisualRewardManager"
    assert reward_settings.find_problems(reward) == []


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["reward.scorer=colour"], "reward.scorer: unknown scorer colour; did you mean color?"),
        (
            ["reward.scorer=color", "reward.scorer_kwargs.colour=red"],
            "reward.scorer_kwargs.colour: unknown setting; did you mean color?",
        ),
        (["reward.scorer=imagebind"], "reward.scorer: imagebind is not available: no working package"),
        ([SEVERAL, "reward.reward_functions={choice: {}}"], "reward.reward_functions.choice.name: choice is not"),
        (["reward.scorer=http"], "reward.scorer_kwargs.url: must be given"),
        ([SEVERAL, "reward.reward_functions={ocr: {name: genrm_ocr}}"], "reward.reward_functions.ocr.base_url: must"),
        (["reward.reward_manager.name=Multi"], "reward.reward_manager.name: Multi does not exist; write Vis"),
        (
            ["reward.reward_manager.source=register", "reward.reward_manager.name=naive"],
            "reward.reward_manager.name: naive of verl scores texts; write source=importlib and VisualRewardManager",
        ),
        (
            ["reward.scorer=color", "reward.reward_functions={jpeg: {}}"],
            "reward.reward_functions: is not read by VisualRewardManager; write",
        ),
        ([SEVERAL, "reward.scorer=jpeg"], "reward.scorer: is not read by MultiVisualRewardManager; write"),
        (
            [SEVERAL, "reward.reward_functions={small: {name: jpeg, qualty: 5}}"],
            "reward.reward_functions.small.qualty: unknown setting; did you mean quality?",
        ),
        ([SEVERAL, "reward.reward_functions={smal: {}}"], "reward.reward_functions.smal.name: unknown scorer smal"),
        ([f"{ONE}.path=no.py"], f"{ONE}.path: no file no.py"),
        ([f"{ONE}.path=pkg://no_such"], f"{ONE}.path: no module no_such"),
        ([f"{ONE}.path=no.py", "reward.scorer=jpeg"], f"reward.scorer: is not read with {ONE}.path"),
        ([f"+{ONE}.reward_kwargs.weight=2"], f"{ONE}.reward_kwargs: is not read without {ONE}.path; write reward.sc"),
        ([f"{ONE}.path=pyproject.toml"], f"{ONE}.path: pyproject.toml is not a Python file"),
        ([f"{ONE}.path=conftest.py"], f"{ONE}.path: conftest.py has no function compute_score"),
        (["reward.scorer=python"], "reward.scorer_kwargs.function: must be given as path/to/file.py:name or pack"),
        (
            ["reward.scorer=python", "reward.scorer_kwargs.function=mine"],
            "reward.scorer_kwargs.function: must be given as",
        ),
        ([SEVERAL], "reward.reward_functions: must have a scorer with MultiVisualRewardManager"),
        ([SEVERAL, "reward.reward_functions={jpeg: {weight: 0}}"], "reward.reward_functions: the weights must add up"),
        (
            ["reward.scorer=jpeg", "reward.scorer_kwargs.quality=high"],
            "reward.scorer_kwargs.quality: high should be a valid integer",
        ),
        (
            [SEVERAL, "reward.reward_functions={red: {name: color, color: pink}}"],
            "reward.reward_functions.red.color: pink is not one of red, green, blue",
        ),
    ],
)
def test_a_reward_that_would_fail_is_refused_by_the_name_of_its_setting(overrides: list[str], message: str) -> None:
    assert any(problem.startswith(message) for problem in problems(*overrides)), problems(*overrides)


def test_a_setting_of_a_scorer_may_refer_to_another_one(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("def compute_score(solution_image, **_): ...\n")
    (tmp_path / "mine").touch()
    places = [f"trainer.project_name={tmp_path}", SEVERAL, f"{PARTS}.mine.path=${{trainer.project_name}}/mine.py"]
    assert problems(*places) == []
    quality = "reward.scorer_kwargs.quality=${data.train_batch_size}"
    assert problems("reward.scorer=jpeg", quality, "data.train_batch_size=8") == []
    assert problems("reward.scorer=jpeg", quality, "data.train_batch_size=800") == [
        "reward.scorer_kwargs.quality: 800 should be less than or equal to 100"
    ]


def test_verls_name_of_a_module_may_have_slashes() -> None:
    named = f"{ONE}.path=pkg://verl_omni/reward_loop/rewards/brightness"
    assert problems(named, f"{ONE}.name=compute_score") == []


def test_a_users_function_is_checked_and_not_run(user_file: Path) -> None:
    part = f"path: {user_file}, name: strict"
    assert problems(SEVERAL, f"reward.reward_functions={{a: {{{part}, f: 2}}}}") == []
    assert problems(SEVERAL, f"reward.reward_functions={{a: {{{part}, g: 2}}}}") == [
        "reward.reward_functions.a.g: unknown setting; one of f"
    ]
    overrides = [f"{ONE}.path={user_file}", f"{ONE}.name=strict", f"+{ONE}.reward_kwargs.f=2"]
    assert problems(*overrides) == []
    assert problems(*overrides, f"{ONE}.reward_kwargs.g=2") == [f"{ONE}.reward_kwargs.g: unknown setting; one of f"]
    function = f"reward.scorer_kwargs.function='{user_file}:strict'"
    assert problems("reward.scorer=python", function, "reward.scorer_kwargs.g=1") == [
        "reward.scorer_kwargs.g: unknown setting; one of f"
    ]
    assert problems("reward.scorer=python", f"reward.scorer_kwargs.function='{user_file}:judge'") == []


@pytest.mark.parametrize(("name", "why"), [("each", "it has a `yield`"), ("placed", "the parameters solution_image")])
def test_a_users_function_that_no_call_makes_score_is_refused_before_the_start(
    user_file: Path, name: str, why: str
) -> None:
    (problem,) = problems(SEVERAL, f"reward.reward_functions={{a: {{path: {user_file}, name: {name}}}}}")
    assert problem.startswith(f"reward.reward_functions.a.path: {name}: {why}")
    (problem,) = problems(f"{ONE}.path={user_file}", f"{ONE}.name={name}")
    assert problem.startswith(f"{ONE}.path: {name}: {why}")
    (problem,) = problems("reward.scorer=python", f"reward.scorer_kwargs.function='{user_file}:{name}'")
    assert problem.startswith(f"reward.scorer_kwargs.function: {name}: {why}")


@pytest.mark.parametrize(
    ("architecture", "overrides", "wrong"),
    [
        (
            "WanPipeline",
            ["reward.scorer=clap"],
            "reward.scorer: clap scores audio, and WanPipeline g",
        ),
        (
            "WanPipeline",
            [SEVERAL, "reward.reward_functions={sound: {name: clap}}"],
            "reward.reward_functions.sound: clap scores audio",
        ),
        ("WanPipeline", [SEVERAL, "reward.reward_functions={clap: {path: my.py}}"], None),
        ("WanPipeline", ["reward.scorer=brightness"], None),
        (
            "WanPipeline",
            ["reward.scorer=shapes"],
            "reward.scorer: shapes takes images, and WanPipeline",
        ),
        (
            "WanPipeline",
            [SEVERAL, "reward.reward_functions={own: {name: shapes}}"],
            "reward.reward_functions.own: shapes takes images",
        ),
        (
            "WanPipeline",
            [SEVERAL, "reward.reward_functions={a: {path: verl_omni/utils/reward_score/http_scorer_client.py}}"],
            "reward.reward_functions.a: http with protocol=pickle takes images",
        ),
        ("WanPipeline", [SEVERAL, "reward.reward_functions={a: {name: http, url: 'http://a'}}"], None),
        ("WanPipeline", ["reward.scorer=jpeg"], None),
        ("StableDiffusion3Pipeline", ["reward.scorer=shapes"], None),
        (
            "StableDiffusion3Pipeline",
            ["reward.scorer=videoalign"],
            "reward.scorer: videoalign takes videos, and Stable",
        ),
        ("WanPipeline", ["reward.scorer=videoalign"], None),
        ("MyPipeline", ["reward.scorer=videoalign"], None),
        ("MyPipeline", ["reward.scorer=shapes"], None),
        ("MyPipeline", ["reward.scorer=clap"], None),
    ],
)
def test_a_scorer_is_for_models_that_generate_what_it_takes(
    architecture: str, overrides: list[str], wrong: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from verl_omni.pipelines.registry import FAMILIES, Family

    monkeypatch.setattr(FAMILIES, "_entries", {**FAMILIES, "MyPipeline": Family("mine:Pipeline", "mine:Training")})
    config = smallest_job.load(f"actor_rollout_ref.model.architecture={architecture}", *overrides)
    problems = list(reward_settings.sample_problems(config))
    assert len(problems) == (wrong is not None) and all(problem.startswith(str(wrong)) for problem in problems)


@pytest.mark.slow
def test_scorers_are_checked_without_ray() -> None:
    """Ray reads its settings when it is imported, after the checks; workers are forked before that."""
    program = (
        "import sys\n"
        "from verl_omni.trainer.settings import configuration, reward_settings\n"
        "for scorer in ('http', 'http_batch', 'genrm_ocr', 'unified_reward'):\n"
        "    url = \"url: 'http://x'\" if 'http' in scorer else ''\n"
        "    own = [f'reward.scorer={scorer}', f'reward.scorer_kwargs={{{url}}}']\n"
        f"    reward_settings.find_problems(configuration.load([*{smallest_job.REQUIRED}, *own]).reward)\n"
        "    assert 'ray' not in sys.modules, scorer\n"
        "assert 'verl_omni.reward_loop.scorer_results' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
