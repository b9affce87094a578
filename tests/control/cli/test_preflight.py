"""Preflight checks of this machine before a local run."""

import json
from pathlib import Path

import pytest

from control.api.small_job import GOOD
from omni_operator.api import Problem, read_job
from omni_operator.api.files.yaml_document import Document
from omni_operator.cli.local.preflight import file_problems, machine_problems, variable_problems
from omni_operator.cli.machine.machine_facts import Accelerators

JOB = f"""{GOOD}\
    accelerator: {{vendor: NVIDIA, count: 2}}
  rollout: {{placement: Separate, replicas: 2, accelerator: {{vendor: NVIDIA, count: 3}}}}
"""

JUDGE = "model: {base: ./judge, placement: Separate, replicas: 2, accelerator: {vendor: NVIDIA, count: 1}}"
JUDGED = JOB.replace("    - name: jpeg", f"    - name: genrm_ocr\n    {JUDGE}")

POOL = "pool: {replicas: 2, accelerator: {vendor: NVIDIA, count: 1}}"
POOLED = JOB.replace("    - name: jpeg", f"    - name: pickscore\n      {POOL}")


def problems_on(count: int, text: str) -> list[Problem]:
    """What keeps a job from running on a machine with so many accelerators of NVIDIA."""
    loaded = read_job(text, "job.yaml")
    accelerators = (Accelerators("NVIDIA", count, ("H100",) * count),)
    return list(machine_problems(loaded.job, loaded.document, accelerators, ()))


@pytest.mark.parametrize(("text", "needed"), [(JOB, 8), (JUDGED, 10), (POOLED, 10)])
def test_a_machine_needs_the_accelerators_of_all_pools(text: str, needed: int) -> None:
    problems = [[problem.text for problem in problems_on(count, text)] for count in (needed - 1, needed)]
    assert problems == [[f"the job needs {needed} NVIDIA accelerators; this machine has {needed - 1}"], []]


def test_a_local_run_has_accelerators_of_one_vendor() -> None:
    text = JUDGED.replace("vendor: NVIDIA", "vendor: Ascend").replace("Ascend, count: 2", "NVIDIA, count: 2")
    problems = {problem.field: problem.text for problem in problems_on(10, text)}
    reason = "is Ascend: a local run uses accelerators of one vendor, and the trainer's are NVIDIA"
    assert problems == {"spec.rollout.accelerator.vendor": reason, "spec.reward.model.accelerator.vendor": reason}


def test_a_shell_that_is_offline_cannot_send_results_to_the_hub() -> None:
    job = read_job(JOB, "job.yaml").job
    document = Document.parse(JOB, "job.yaml")
    assert list(variable_problems(job, document, {"HF_HUB_OFFLINE": "1"})) == []
    job = read_job(JOB, "job.yaml", ["spec.output={url: hf://owner/name}"]).job
    (problem,) = variable_problems(job, document, {"HF_HUB_OFFLINE": "1"})
    assert problem.field == "spec.output.url"
    assert "this shell sets HF_HUB_OFFLINE=1: unset it, and only the results reach the hub" in problem.text
    mixed = ["spec.output={url: hf://owner/name}", "spec.storage={endpoint: 'http://m:9000'}"]
    both = read_job(JOB, "job.yaml", [*mixed, "spec.model.base=s3://b/m"]).job
    (problem,) = variable_problems(both, document, {})
    assert problem.field == "spec.storage.endpoint" and problem.text.startswith("is ambiguous")
    assert list(variable_problems(both, document, {"HF_ENDPOINT": "https://hub"})) == []
    for environment in ({}, {"HF_HUB_OFFLINE": "0"}, {"HF_HUB_OFFLINE": ""}):
        assert list(variable_problems(job, document, environment)) == []


@pytest.mark.parametrize(
    ("text", "settings", "found"),
    [
        ("def compute_score(solution_image, target=1): ...", "{target: 2}", []),
        ("\ufeffdef compute_score(solution_image): ...", "{}", []),
        ("from elsewhere import compute_score", "{any: 1}", []),
        (
            "def compute_score(solution_image, target): ...",
            "{taget: 2}",
            ["settings.taget: unknown setting; did you mean target?", "settings.target: must be given"],
        ),
        (
            "def compute_score(images, prompts, metadata): ...",
            "{images: 1, prompts: 1}",
            ["settings.metadata: must be given; if it is what flow_grpo and TRL pass, name the parameter extra_infos"],
        ),
        (
            "def score(solution_image): ...",
            "{}",
            ["function.path: {file} has no function compute_score; did you mean score?"],
        ),
        (
            "class compute_score: ...",
            "{}",
            [
                "function.path: compute_score of {file} is a class; name a function, which makes the object once and "
                "calls it"
            ],
        ),
        (
            "def compute_score(solution_image, /):\n    yield 1.0",
            "{}",
            [
                "function.name: compute_score: the parameters solution_image are before a `/`, and a scorer gets its "
                "arguments by name; remove the `/`",
                "function.name: compute_score: it has a `yield`, so a call returns a generator; return the score, or a "
                "list of scores",
            ],
        ),
        ("def compute_score(:", "{}", ["function.path: {file} is not Python: invalid syntax (line 1)"]),
    ],
)
def test_a_function_that_the_trainer_would_refuse_is_found_without_running_its_file(
    text: str, settings: str, found: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "own.py"
    file.write_text(text, encoding="utf-8")
    scorer = f"- name: own\n      function: {{path: {file}}}\n      settings: {settings}"
    job = GOOD.replace("- name: jpeg", scorer)
    at = "spec.reward.scorers[0]."
    expected = [f"{at}{problem.format(file=file)}" for problem in found]
    assert reward_problems(job) == expected
    (file.parent / "own.txt").write_text(text, encoding="utf-8")
    assert reward_problems(job.replace("own.py", "own.txt"))[0].endswith("own.txt is not a Python file (.py)")
    for custom_reward in (
        "algorithm: {entrypoint: [python3, mine.py]}",
        "algorithm: {overrides: [reward.reward_manager.module.path=mine.py]}",
    ):
        assert reward_problems(f"{job}  {custom_reward}\n") == []


def test_the_folder_of_a_judge_must_exist(tmp_path: Path) -> None:
    judge = f"reward:\n    model: {{base: {tmp_path}/judge}}"
    job = GOOD.replace("reward:", judge, 1)
    assert reward_problems(job) == [f"spec.reward.model.base: no folder {tmp_path}/judge"]
    (tmp_path / "judge").mkdir()
    assert reward_problems(job) == []


def reward_problems(text: str) -> list[str]:
    """What is wrong with the scorers of a job on this machine."""
    loaded = read_job(text, "job.yaml")
    problems = file_problems(loaded.job, loaded.document)
    return [f"{problem.field}: {problem.text}" for problem in problems if problem.field.startswith("spec.reward")]


def test_sides_that_a_model_cannot_generate_are_refused_as_by_the_trainer(tmp_path: Path) -> None:
    files = {
        "model_index.json": {"_class_name": "WanPipeline"},
        "transformer/config.json": {"patch_size": [1, 2, 2]},
        "vae/config.json": {"scale_factor_spatial": 8},
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps(content))
    (tmp_path / "rows.jsonl").write_text('{"prompt": "red"}\n')
    width = "actor_rollout_ref.rollout.val_kwargs.pipeline.width"
    changes = [
        f"spec.model.base={tmp_path}",
        f"spec.data={{train: [{tmp_path}/rows.jsonl]}}",
        "spec.rollout={pipeline: {height: 40, width: 64}}",
        f"spec.algorithm.overrides=[{width}=72]",
    ]
    job = read_job(GOOD, "job.yaml", changes).job
    document = Document.parse(GOOD, "job.yaml")
    assert {problem.field: problem.text for problem in file_problems(job, document)} == {
        "spec.rollout.pipeline.height": "must be a multiple of 16, not 40; write 32",
        "spec.algorithm.overrides[0]": f"{width}: must be a multiple of 16, not 72; write 64",
    }
    (tmp_path / "model_index.json").write_text('{"_class_name": "MyPipeline"}')
    assert not list(file_problems(job, document))
