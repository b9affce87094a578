"""Settings of scorers, URLs and overrides in jobs: what is refused, and what is said then."""

from __future__ import annotations

import json

import pytest

from control.api.small_job import GOOD, problems
from omni_operator.api import read_job
from omni_operator.api.overrides.reserved import RESERVED

JUDGE = "model: m, base_url: 'http://judge:80/v1'"


@pytest.mark.parametrize(
    ("scorer", "at", "said"),
    [
        ("{name: color, settings: {color: mauve}}", "color", "'mauve' is not one of red, green, blue"),
        ("{name: color, settings: {color: rde}}", "color", "did you mean 'red'?"),
        ("{name: color, settings: {color: 1}}", "color", "1 is not one of red, green, blue"),
        (
            "{name: color, settings: {colour: red}}",
            "colour",
            "the scorer 'color' has only color; did you mean 'color'?",
        ),
        ("{name: redness, builtin: color, settings: {color: x}}", "color", "'x' is not one of"),
        (
            "{name: brightness, settings: {gamma: 2}}",
            "gamma",
            "unknown setting; the scorer 'brightness' has no settings",
        ),
        ("{name: jpeg, settings: {quality: 101}}", "quality", "101 must be at most 100"),
        ("{name: jpeg, settings: {quality: 0}}", "quality", "0 must be at least 1"),
        ("{name: jpeg, settings: {quality: high}}", "quality", "must be a whole number, not 'high'"),
        ("{name: shapes, settings: {correct_weight: 1.5}}", "correct_weight", "1.5 must be at most 1"),
        ("{name: genrm_ocr, settings: {model: m}}", "base_url", "must be given: the judge's URL up to and with /v1"),
        (
            "{name: genrm_ocr, settings: {base_url: 'http://judge/v1'}}",
            "model",
            "must be given: the name that the server",
        ),
        (
            "{name: genrm_ocr, settings: {model: m, base_url: 'judge:80'}}",
            "base_url",
            "'judge:80' has the wrong format",
        ),
        (
            f"{{name: unified_reward, settings: {{{JUDGE}, template: Rate it}}}}",
            "template",
            "with {prompt} in place of",
        ),
        (f"{{name: unified_reward, settings: {{{JUDGE}, lowest: 5}}}}", "lowest", "5 must be less than highest (5)"),
        ("{name: aesthetic}", "head_path", "must be given: the predictor's weights"),
        ("{name: aesthetic, settings: {head_path: ~/h.pth}}", "head_path", "write the whole path"),
        ("{name: pickscore, settings: {model_name_or_path: 'hf://a/b'}}", "model_name_or_path", "hf:// is not"),
        ("{name: clip_score, settings: {device: 'cuda: 0'}}", "device", "has the wrong format: device of the model"),
        ("{name: x, http: {url: 'http://h'}, settings: {model: a}}", "model", "a reward server takes no settings"),
        ("{name: x, function: {path: r.py}, settings: {weight: 1}}", "weight", "is a field of the scorer itself"),
    ],
)
def test_an_invalid_scorer_setting_is_refused_with_the_valid_ones(scorer: str, at: str, said: str) -> None:
    (found,) = problems(GOOD.replace("- name: jpeg", f"- {scorer}"))
    assert found.startswith(f"job.yaml:12: spec.reward.scorers[0].settings.{at}: ")
    assert said in found


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
    (found,) = problems(GOOD, value.format(scheme))
    assert f": {field}: {scheme}:// is not supported: " in found
    assert fix in found


def test_data_and_model_may_be_in_an_s3_store() -> None:
    changes = ["spec.data={train: ['s3://b/t.jsonl'], validation: ['s3://b/v.jsonl']}", "spec.model.base=s3://b/model"]
    job = read_job(GOOD, "job.yaml", [*changes, "spec.storage={endpoint: 'http://minio:9000', secretName: s}"]).job
    assert job.spec.uses_s3 and job.spec.model.base_in_store and not job.spec.model.base_is_folder
    (found,) = problems(GOOD, "spec.reward.scorers=[{name: a, function: {path: 's3://b/r.py'}}]")
    assert "s3:// is not supported: write the path of a Python file, or pkg://module" in found
    for field, value in (("model.base", "s3://bucket-only"), ("data.train", "['s3:///no-bucket']")):
        (found,) = problems(GOOD, f"spec.{field}={value}")
        assert "s3:// is not supported: " in found


def test_results_may_leave_for_a_repository_of_the_hub() -> None:
    hub = "spec.output={url: hf://owner/sd3.5-adapters/team}"
    job = read_job(GOOD, "job.yaml", [hub, "spec.storage={endpoint: 'https://hub', secretName: s}"]).job
    assert job.spec.sends_to_hub and not job.spec.uses_s3
    job = read_job(GOOD, "job.yaml", [hub, "spec.model.base=s3://b/m", "spec.storage={region: eu-1}"]).job
    assert job.spec.sends_to_hub and job.spec.uses_s3 and not job.spec.trainer_uses_s3


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["spec.output={url: hf://owner}"], "hf://OWNER/NAME for a model repository of the Hugging Face hub"),
        (["spec.output={url: hf://owner/name@v1}"], "hf://OWNER/NAME for a model repository of the Hugging Face hub"),
        (["spec.output={url: hf://datasets/owner/name}"], "results are sent to model repositories only"),
        (["spec.output={url: hf://o/n}", "spec.storage={region: eu-1}"], "only S3-compatible stores have regions"),
        (["spec.model.base=hf://owner/name"], "hf:// is not supported: write a folder, a model id 'owner/name'"),
        (["spec.data.train=['hf://datasets/o/n/a.jsonl']"], "hf:// is not supported: the trainer reads files"),
        (["spec.output={url: results}"], "write s3://BUCKET/PREFIX, hf://OWNER/NAME for a"),
        (["spec.output={url: s3://b, claimName: c}"], "has no effect unless spec.output.url is file:///FOLDER"),
        (
            ["spec.storage={secretName: s}"],
            "has no effect: no s3:// URL in spec.data, spec.model.base or spec.output.url",
        ),
        (["spec.model={base: s3://b/m, revision: main}"], "spec.model.base is not a model id"),
        (["spec.model.cache={claimName: c}"], "spec.model.base is a folder, which is not downloaded"),
    ],
)
def test_stores_that_are_not_used_or_not_supported_are_refused(changes: list[str], said: str) -> None:
    (found,) = problems(GOOD, *changes)
    assert said in found


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
    (found,) = problems(GOOD, "spec.algorithm={name: Custom, overrides: [trainer.seed=1]}")
    assert "trainer.seed is reserved: spec.seed sets it" in found


@pytest.mark.parametrize("setting", [*RESERVED, "reward", "+trainer.seed", "reward.custom_reward_function.path"])
def test_an_override_of_a_reserved_setting_is_refused(setting: str) -> None:
    (found,) = problems(GOOD + f"  algorithm:\n    overrides:\n    - data.shuffle=false\n    - {setting}=1\n")
    assert found.startswith("job.yaml:18: spec.algorithm.overrides[1]: ")
    assert " is reserved: " in found


@pytest.mark.parametrize(
    ("algorithm", "override", "said"),
    [
        ("FlowGRPO", "actor_rollout_ref.actor.optim.weight_decy=0", "optim.weight_decay'?"),
        ("FlowGRPO", "actor_rollout_ref.rollout.val_kwargs.height=64", "rollout.val_kwargs.pipeline.height'?"),
        ("FlowGRPO", "optim.grad_clip=1", "did you mean 'actor_rollout_ref.actor.grad_clip'?"),
        ("Custom", "++trainer.shufle=1", "the trainer has no setting trainer.shufle"),
        ("FlowGRPO", "actor_rollout_ref.actor.diffusion_loss.mix_bta=1", "actor.diffusion_loss.mix_bta"),
    ],
)
def test_an_unknown_override_is_refused_with_the_nearest_setting(algorithm: str, override: str, said: str) -> None:
    (found,) = problems(GOOD + f"  algorithm:\n    name: {algorithm}\n    overrides:\n    - {override}\n")
    assert found.startswith("job.yaml:18: spec.algorithm.overrides[0]: ")
    assert said in found


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
