"""Tests of the overrides of a job."""

import json

import pytest

from omni_operator import plan
from omni_operator.api import DiffusionRLJob, JobError, read_job
from omni_operator.api.spec.training import Algorithm
from verl_omni.settings_schema.declarations import FIELDS, field_of

BASE = """
apiVersion: diffusionrl.io/v1alpha1
kind: DiffusionRLJob
metadata: {name: a-job}
spec:
  model: {base: ./model, lora: {rank: 4, alpha: 8}}
  data: {train: [t.jsonl], validation: [sub/../v.jsonl]}
  reward:
    scorers: [{name: jpeg, settings: {quality: 50}}]
  rollout:
    sampler: {window: {size: 2, end: 4}}
  trainer: {totalSteps: 3, batch: {prompts: 8, microBatchSamples: 16}}
"""


def job(*assignments: str) -> DiffusionRLJob:
    return plan.resolve_paths(read_job(BASE, "job.yaml", assignments).job, "/project/jobs")


def settings(*assignments: str) -> dict[str, object]:
    parsed = job(*assignments)
    return dict(plan.render_settings(parsed, plan.local_layout(parsed, "/runs")))


def test_relative_paths_start_at_the_folder_of_the_file() -> None:
    rendered = settings()
    assert rendered["actor_rollout_ref.model.path"] == "/project/jobs/model"
    assert rendered["data.train_files"] == ("/project/jobs/t.jsonl",)
    assert rendered["data.val_files"] == ("/project/jobs/v.jsonl",)
    assert rendered["trainer.default_local_dir"] == "/runs/a-job"


def test_a_model_id_and_absolute_paths_stay() -> None:
    rendered = settings("spec.model.base=Qwen/Qwen-Image", "spec.data.train=[/data/t.jsonl]")
    assert rendered["actor_rollout_ref.model.path"] == "Qwen/Qwen-Image"
    assert rendered["data.train_files"] == ("/data/t.jsonl",)


@pytest.mark.parametrize(
    ("base", "path"),
    [
        ("shapes-sd3", "/project/jobs/shapes-sd3"),
        ("./models/sd3", "/project/jobs/models/sd3"),
        ("../sd3", "/project/sd3"),
        ("/m/sd3", "/m/sd3"),
        ("a/b/c", "/project/jobs/a/b/c"),
        ("Qwen/Qwen-Image",) * 2,
    ],
)
def test_a_base_with_one_slash_and_no_dot_is_a_model_id(base: str, path: str) -> None:
    assert settings(f"spec.model.base={base}")["actor_rollout_ref.model.path"] == path


def test_dtypes_that_are_not_given_are_left_to_the_trainer() -> None:
    names = ("actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype", "actor_rollout_ref.rollout.dtype")
    assert not settings().keys() & set(names)
    rendered = settings("spec.trainer.precision=bfloat16", "spec.rollout.engine.dtype=float32")
    assert [rendered[name] for name in names] == ["bfloat16", "float32"]


def test_a_single_scorer_is_set_by_name_with_its_settings() -> None:
    rendered = settings()
    assert (rendered["reward.scorer"], rendered["reward.scorer_kwargs.quality"]) == ("jpeg", 50)
    assert "reward.reward_manager.name" not in rendered


def test_a_function_of_the_user_is_a_custom_reward_function() -> None:
    rendered = settings("spec.reward.scorers=[{name: mine, function: {path: r.py, name: score}}]")
    assert rendered["reward.custom_reward_function.path"] == "/project/jobs/r.py"
    assert rendered["reward.custom_reward_function.name"] == "score"
    module = settings("spec.reward.scorers=[{name: mine, function: {path: 'pkg://my.rewards'}}]")
    assert module["reward.custom_reward_function.path"] == "pkg://my.rewards"


def test_a_reward_server_is_the_http_scorer() -> None:
    rendered = settings("spec.reward.scorers=[{name: judge, http: {url: 'http://judge:80/', attempts: 5}}]")
    assert rendered["reward.scorer"] == "http"
    assert rendered["reward.scorer_kwargs.url"] == "http://judge:80/"
    assert rendered["reward.scorer_kwargs.attempts"] == 5


def test_the_paths_of_a_scorer_start_at_the_jobs_folder_and_repositories_stay() -> None:
    chosen = {"head_path": "head.pth", "model_name_or_path": "./clip/large", "device": "cpu"}
    rendered = settings(f"spec.reward.scorers={json.dumps([{'name': 'aesthetic', 'settings': chosen}])}")
    assert {name: rendered[f"reward.scorer_kwargs.{name}"] for name in chosen} == {
        "head_path": "/project/jobs/head.pth",
        "model_name_or_path": "/project/jobs/clip/large",
        "device": "cpu",
    }
    names = "{model_name_or_path: owner/name, processor_name_or_path: /models/h}"
    rendered = settings(f"spec.reward.scorers=[{{name: pickscore, settings: {names}}}]")
    assert rendered["reward.scorer_kwargs.model_name_or_path"] == "owner/name"
    assert rendered["reward.scorer_kwargs.processor_name_or_path"] == "/models/h"


def test_several_scorers_are_weighted() -> None:
    rendered = settings(
        "spec.reward.scorers=[{name: jpeg, weight: 2.0}, {name: red, builtin: color, required: false},"
        " {name: mine, function: {path: /r.py}, settings: {k: [1]}}]"
    )
    assert rendered["reward.reward_manager.name"] == "MultiVisualRewardManager"
    assert rendered["reward.reward_functions.jpeg.weight"] == 2.0
    assert rendered["reward.reward_functions.red.name"] == "color"
    assert rendered["reward.reward_functions.red.required"] is False
    assert rendered["reward.reward_functions.mine.path"] == "/r.py"
    assert rendered["reward.reward_functions.mine.k"] == [1]


def test_a_scorer_of_evaluations_has_no_weight_and_may_end_the_run() -> None:
    rendered = settings(
        "spec.reward={scorers: [{name: jpeg}, {name: red, builtin: color, use: Evaluation}], earlyStoppingPatience: 3}"
    )
    assert rendered["reward.reward_manager.name"] == "MultiVisualRewardManager"
    assert rendered["reward.early_stopping_patience"] == 3
    of_red = {name.rpartition(".")[2]: value for name, value in rendered.items() if ".reward_functions.red." in name}
    assert of_red == {"name": "color", "use": "evaluation"}


NUMBERS = ("spec.rollout.agentLoop.workers=2", "spec.rollout.engine.maxConcurrentRequests=9", "spec.reward.replicas=3")


def test_numbers_of_workers_and_requests_are_set_only_if_the_job_gives_them() -> None:
    rendered = settings(*NUMBERS)
    open_ones = settings()
    numbers = {name: rendered[name] for name in rendered.keys() - open_ones.keys()}
    assert numbers == {
        "actor_rollout_ref.rollout.agent.num_workers": 2,
        "actor_rollout_ref.rollout.max_concurrent_requests": 9,
        "reward.num_workers": 3,
    }


def test_prompt_embeddings_are_kept_next_to_the_run_folders() -> None:
    rollout = "actor_rollout_ref.rollout"
    names = f"{rollout}.prompt_cache_dir", f"{rollout}.offload_text_encoders"
    assert not {*names} & settings().keys()
    rendered = settings("spec.rollout.engine.promptCache=true")
    assert rendered[names[0]] == "/runs/.prompt-cache" and names[1] not in rendered
    both = settings("spec.rollout.engine={promptCache: true, offloadTextEncoders: true}")
    assert (both[names[0]], both[names[1]]) == ("/runs/.prompt-cache", True)
    with pytest.raises(JobError, match=r"offloadTextEncoders: needs spec.rollout.engine.promptCache: true"):
        job("spec.rollout.engine.offloadTextEncoders=true")


def test_a_local_run_has_all_accelerators_on_one_machine() -> None:
    rendered = settings("spec.trainer.replicas=2", "spec.trainer.accelerator.count=2", "spec.rollout.replicas=4")
    assert (rendered["trainer.nnodes"], rendered["trainer.n_gpus_per_node"]) == (1, 4)


def test_without_an_adapter_all_weights_are_trained() -> None:
    rendered = settings("spec.model.lora.enabled=false")
    assert rendered["actor_rollout_ref.model.lora_rank"] == 0
    assert "actor_rollout_ref.model.target_modules" not in rendered


def test_an_adapter_to_start_from_gives_rank_and_alpha_unless_the_job_does() -> None:
    names = [f"actor_rollout_ref.model.lora_{name}" for name in ("adapter_path", "rank", "alpha")]
    rendered = settings("spec.model.lora={startFrom: sft}")
    assert [rendered[name] for name in names] == ["/project/jobs/sft", 0, None]
    rendered = settings("spec.model.lora={startFrom: /sft, rank: 8, alpha: 4}")
    assert [rendered[name] for name in names] == ["/sft", 8, 4]
    assert [settings("spec.model.lora={}").get(name) for name in names] == [None, 32, 64]


@pytest.mark.parametrize(
    ("name", "placement", "strategy"),
    [("MixGRPO", "", "progressive"), ("MixGRPO", ", placement: Random", "random"), ("FlowGRPO", "", "random")],
)
def test_the_window_of_mix_grpo_moves_unless_it_is_random(name: str, placement: str, strategy: str) -> None:
    rendered = settings(f"spec.algorithm.name={name}", f"spec.rollout.sampler.window={{size: 2, end: 4{placement}}}")
    assert rendered["actor_rollout_ref.rollout.algo.sample_strategy"] == strategy
    assert rendered["actor_rollout_ref.actor.diffusion_loss.loss_mode"] == "flow_grpo"
    assert rendered["algorithm.adv_estimator"] == ("mix_grpo" if name == "MixGRPO" else "flow_grpo")


def test_a_progressive_window_has_its_training_steps_per_place() -> None:
    rendered = settings("spec.rollout.sampler.window={size: 2, end: 4, placement: Progressive, stepsPerPlace: 3}")
    assert rendered["actor_rollout_ref.rollout.algo.sample_strategy"] == "progressive"
    assert rendered["actor_rollout_ref.rollout.algo.iters_per_group"] == 3


def test_target_modules_default_to_those_of_the_model_family() -> None:
    name = "actor_rollout_ref.model.target_modules"
    assert settings("spec.model.lora.rank=4")[name] is None
    assert settings("spec.model.lora.targetModules=[attn1.to_q]")[name] == ("attn1.to_q",)
    assert settings("spec.model.lora.targetModules=[all-linear]")[name] == "all-linear", "of peft, not a suffix"


def test_a_single_scorer_that_may_fail_needs_the_manager_of_several() -> None:
    rendered = settings("spec.reward.scorers=[{name: jpeg, required: false}]")
    assert rendered["reward.reward_functions.jpeg.required"] is False
    assert "reward.scorer" not in rendered


def test_trackers_that_can_show_pictures_get_some() -> None:
    def shown(tracking: str) -> object:
        return settings(f"spec.observability.tracking={tracking}").get("trainer.log_val_generations")

    assert shown("{loggers: [console]}") is None
    assert shown("{loggers: [console, wandb]}") == 8 and shown("{loggers: [mlflow], images: 3}") == 3
    assert shown("{loggers: [tensorboard], images: 0}") is None


def test_rendered_and_reserved_settings_are_the_same() -> None:
    every = settings() | settings("spec.reward.scorers=[{name: jpeg}, {name: shapes}]")
    every |= settings("spec.reward.scorers=[{name: a, function: {path: a.py}}]")
    every |= settings("spec.observability.tracking={loggers: [tensorboard], project: p}")
    every |= settings("spec.trainer.precision=bfloat16", "spec.rollout.engine.dtype=bfloat16")
    every |= settings("spec.rollout.engine={promptCache: true, offloadTextEncoders: true}")
    every |= settings(*NUMBERS)
    every |= settings(
        "spec.reward={scorers: [{name: jpeg}, {name: shapes, use: Evaluation}], earlyStoppingPatience: 1}"
    )
    every |= settings("spec.model.lora.startFrom=sft", "spec.reward.maxFailedShare=0")
    every |= settings("spec.output={url: s3://b/runs}", "spec.storage={endpoint: 'http://h:9000', region: eu}")
    trainer = "spec.trainer.accelerator={vendor: Mock}"
    npus = "accelerator: {vendor: Mock, rayResource: NPU}"
    rollout = f"spec.rollout={{placement: Separate, batchesAhead: 1, minReplicas: 1, {npus}}}"
    every |= plan.render_settings(*plan.resolve_for_pods(job(trainer, rollout)))
    judge = job(trainer, f"spec.reward.model={{base: judge, placement: Separate, {npus}}}")
    every |= plan.render_settings(*plan.resolve_for_pods(judge))
    # No field sets it: it is left out where an override has it.
    assert [name for name in every if field_of(name) is None] == ["algorithm.rollout_correction.bypass_mode"]
    assert [name for name in FIELDS if not any(key == name or key.startswith(f"{name}.") for key in every)] == []


def test_the_users_overrides_come_last_and_unchanged() -> None:
    mine = "actor_rollout_ref.actor.optim.betas=[0.9,0.95]"
    parsed = job(f"spec.algorithm.overrides=['{mine}']")
    assert plan.render_overrides(parsed, plan.local_layout(parsed, "/runs"))[-1] == mine


def test_the_command_uses_the_given_interpreter() -> None:
    parsed = job("spec.algorithm.entrypoint=[python3, /child.py]")
    line = plan.render_command(parsed, plan.local_layout(parsed, "/runs"), python="/venv/bin/python")
    assert line[:2] == ["/venv/bin/python", "/child.py"]
    assert plan.render_command(job(), plan.local_layout(job(), "/runs"))[:3] == [
        "python3",
        "-m",
        "verl_omni.trainer.main_diffusion",
    ]


@pytest.mark.parametrize(
    ("overrides", "pairs"),
    [
        (["algorithm.sample_source=offline"], True),
        (["++algorithm.sample_source='offline'"], True),
        (["algorithm.sample_source=offline", "algorithm.sample_source=online"], False),
        (["algorithm.sample_source=${oc.env:SOURCE}"], False),
    ],
)
def test_pairs_are_read_where_the_last_override_says_so(overrides: list[str], pairs: bool) -> None:
    assert Algorithm(overrides=tuple(overrides), name="Custom", entrypoint=("mine",)).reads_pairs is pairs
