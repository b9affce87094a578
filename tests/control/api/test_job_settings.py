"""Settings of scorers, URLs and overrides in jobs: what is refused, and what is said then."""

import json

import pytest

from control.api.small_job import GOOD, problems
from omni_operator.api import read_job
from verl_omni.settings_schema.declarations import FIELDS


def test_a_null_scorer_setting_means_the_default() -> None:
    text = GOOD.replace(
        "- name: jpeg", "- {name: shapes, settings: {correct_weight: 1}}\n    - {name: jpeg, settings: {quality: null}}"
    )
    assert [scorer.settings for scorer in read_job(text, "job.yaml").job.spec.reward.scorers] == [
        {"correct_weight": 1},
        {},
    ]


@pytest.mark.parametrize("scheme", ["gs", "hf", "hdfs", "https", "file"])
@pytest.mark.parametrize(
    ("field", "value", "fix"),
    [
        ("spec.data.train[0]", "spec.data.train=['{}://b/k.jsonl']", "copy the file to a folder or mount it"),
        ("spec.data.validation[0]", "spec.data.validation=['{}://b/k.jsonl']", "copy the file to a folder or mount it"),
        (
            "spec.model.base",
            "spec.model.base={}://b/model",
            "write a folder, a model id 'owner/name' or s3://BUCKET/FOLDER",
        ),
        (
            "spec.reward.scorers[0].function.path",
            "spec.reward.scorers=[{{name: a, function: {{path: '{}://b/r.py'}}}}]",
            "write the path of a Python file, or pkg://module",
        ),
    ],
)
def test_a_url_instead_of_a_path_is_refused(scheme: str, field: str, value: str, fix: str) -> None:
    (problem,) = problems(GOOD, value.format(scheme))
    assert f": {field}: {scheme}://b/" in problem and " is not supported: " in problem
    assert fix in problem


def test_data_and_model_may_be_in_an_s3_store() -> None:
    changes = ["spec.data={train: ['s3://b/t.jsonl'], validation: ['s3://b/v.jsonl']}", "spec.model.base=s3://b/model"]
    job = read_job(GOOD, "job.yaml", [*changes, "spec.storage={endpoint: 'http://minio:9000', secretName: s}"]).job
    assert job.spec.uses_s3 and job.spec.model.base_in_store and not job.spec.model.base_is_folder
    (problem,) = problems(GOOD, "spec.reward.scorers=[{name: a, function: {path: 's3://b/r.py'}}]")
    assert "s3://b/r.py is not supported: write the path of a Python file, or pkg://module" in problem
    for field, value in (("model.base", "s3://bucket-only"), ("data.train", "['s3:///no-bucket']")):
        (problem,) = problems(GOOD, f"spec.{field}={value}")
        assert " is not supported: " in problem


def test_results_may_leave_for_a_repository_of_the_hub() -> None:
    hub = "spec.output={url: hf://owner/sd3.5-adapters/team}"
    job = read_job(GOOD, "job.yaml", [hub, "spec.storage={endpoint: 'https://hub', secretName: s}"]).job
    assert job.spec.sends_to_hub and not job.spec.uses_s3
    job = read_job(GOOD, "job.yaml", [hub, "spec.model.base=s3://b/m", "spec.storage={region: eu-1}"]).job
    assert job.spec.sends_to_hub and job.spec.uses_s3 and not job.spec.trainer_uses_s3


def test_overrides_of_a_custom_algorithm_select_it() -> None:
    overrides = [
        "actor_rollout_ref.actor.diffusion_loss.loss_mode=mine",
        "actor_rollout_ref.actor.diffusion_loss.scale=2",
        "actor_rollout_ref.model.algorithm=mine",
        "algorithm.adv_estimator=mine",
    ]
    written = f"spec.algorithm.overrides={json.dumps(overrides)}"
    assert read_job(GOOD, "job.yaml", [written, "spec.algorithm.name=Custom"]).job.spec.algorithm.name == "Custom"
    assert len(problems(GOOD, written)) == len(overrides)
    (problem,) = problems(GOOD, "spec.algorithm={name: Custom, overrides: [trainer.seed=1]}")
    assert "trainer.seed is reserved: spec.seed sets it" in problem


@pytest.mark.parametrize("setting", [*FIELDS, "reward", "+trainer.seed", "reward.custom_reward_function.path"])
def test_an_override_of_a_reserved_setting_is_refused(setting: str) -> None:
    (problem,) = problems(GOOD + f"  algorithm:\n    overrides:\n    - data.shuffle=false\n    - {setting}=1\n")
    assert problem.startswith("job.yaml:18: spec.algorithm.overrides[1]: ")
    assert " is reserved: " in problem


@pytest.mark.parametrize(
    "algorithm",
    [
        "overrides: [+data.shuffle=false, ++data.truncation=error, +data.mm_processor_kwargs.size=2]",
        "overrides: [+ray_kwargs.ray_init.x=1]",
        "{entrypoint: [python3, -m, my.trainer], overrides: [anything.at.all=1]}",
        "{name: DiffusionNFT, overrides: [actor_rollout_ref.actor.diffusion_loss.clip_ratio=1e-4]}",
    ],
)
def test_known_overrides_are_valid(algorithm: str) -> None:
    text = algorithm if algorithm.startswith("{") else f"{{{algorithm}}}"
    assert read_job(GOOD + f"  algorithm: {text}\n", "job.yaml").job.spec.algorithm.overrides
