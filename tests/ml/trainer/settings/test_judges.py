"""The judge that a run serves itself: what is refused, where it runs, when it scores."""

import re
from importlib.metadata import distribution
from pathlib import Path

import pytest
import yaml
from omegaconf import DictConfig, OmegaConf

from tests.ml import smallest_job
from verl_omni.settings_schema.layout import flat_settings
from verl_omni.settings_schema.reference_settings import find_rule
from verl_omni.trainer.settings import configuration, cpu_values, judge_settings, pool_settings, reward_settings

RM = "reward.reward_model"
ON = f"{RM}.enable=true"
PATH = f"{RM}.model_path=judge"
ALONE = f"{RM}.rollout.tensor_model_parallel_size=1"
OWN = (f"{RM}.enable_resource_pool=true", f"{RM}.nnodes=1", f"{RM}.n_gpus_per_node=2")
AHEAD = ("actor_rollout_ref.rollout.nnodes=1", "trainer.use_v1=true", "trainer.v1.trainer_mode=separate_async")


def loaded(*overrides: str) -> DictConfig:
    return smallest_job.load("reward.scorer=genrm_ocr", *overrides)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ((ON, ALONE), "model_path: must be given"),
        ((ON, PATH, ALONE, f"{RM}.rollout.skip_tokenizer_init=true"), "skip_tokenizer_init: a judge answers with text"),
        ((ON, PATH, ALONE, f"{RM}.node_resource=judges"), "node_resource: is not read with"),
        ((ON, PATH, ALONE, f"{RM}.ray_resource=NPU"), "ray_resource: is not read with"),
        ((ON, PATH, *OWN, f"{RM}.ray_resource=TPU"), "ray_resource: must be GPU, NPU, or null"),
        ((ON, PATH, ALONE, f"{RM}.rollout.name=sglang"), "rollout.name: sglang is not supported; write vllm"),
        ((ON, PATH, ALONE, *AHEAD), "enable_resource_pool: the trainer updates while the next batch"),
        ((ON, PATH, f"{RM}.enable_resource_pool=true"), "nnodes: must be at least 1"),
        ((ON, PATH, ALONE, "+" + f"{RM}.rollout.mtp={{enable: true}}"), "decodes one token at a time"),
    ],
)
def test_what_does_not_work_is_refused_with_the_setting(overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(configuration.SettingsError) as caught:
        loaded(*overrides)
    assert message in str(caught.value) and RM in str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ((), "tensor_model_parallel_size: the trainer's 1 accelerators are no multiple of the 2 of a replica"),
        ((*OWN, f"{RM}.n_gpus_per_node=3"), "1 x 3 accelerators are no multiple of the 2 of a replica"),
    ],
)
def test_accelerators_that_replicas_cannot_share_are_refused_and_a_cpu_has_replicas_of_one(
    overrides: tuple[str, ...], message: str
) -> None:
    config = loaded(ON, PATH, *overrides)
    with pytest.raises(ValueError, match=re.escape(message)):
        judge_settings.fill_in(config, has_accelerator=True)
    cpu_values.fill_in(config)
    judge_settings.fill_in(config, has_accelerator=False)
    assert judge_settings.replicas(config) == (3 if overrides else 1)


def test_a_judge_scores_the_evaluations_of_a_run_on_preferences() -> None:
    offline = (
        "actor_rollout_ref.actor.diffusion_loss.loss_mode=dpo",
        "algorithm.sample_source=offline",
        "actor_rollout_ref.model.lora_rank=4",
        ON,
        PATH,
        ALONE,
    )
    assert judge_settings.sleeps(loaded(*offline, "data.val_files=held_out.jsonl"))
    with pytest.raises(
        configuration.SettingsError, match=r"enable: .* only evaluations are scored, .* no data\.val_files"
    ):
        loaded(*offline)


def test_on_the_trainers_accelerators_it_sleeps_unless_told_otherwise_and_on_its_own_never() -> None:
    four = (ON, PATH, "trainer.n_gpus_per_node=4")
    shared = loaded(*four)
    awake = loaded(*four, f"{RM}.rollout.free_cache_engine=false")
    job = loaded(ON, PATH, *OWN)
    configs = (shared, awake, job)
    for config in configs:
        judge_settings.fill_in(config, has_accelerator=True)
    assert [judge_settings.sleeps(config) for config in configs] == [True, False, False]
    assert [judge_settings.shared(config) for config in configs] == [True, True, False]
    assert [judge_settings.replicas(config) for config in configs] == [2, 2, 1]
    assert [judge_settings.accelerators(config) for config in configs] == [0, 0, 2]
    assert [config.reward.reward_model.rollout.enable_sleep_mode for config in configs] == [True, False, False]
    assert "engine_kwargs" in job.reward.reward_model.rollout and not job.reward.reward_model.rollout.engine_kwargs
    without = loaded()
    assert judge_settings.replicas(without) == judge_settings.accelerators(without) == 0
    assert not judge_settings.sleeps(without)


def test_without_an_accelerator_its_engine_has_one_process() -> None:
    config = loaded(ON, PATH, ALONE)
    judge_settings.fill_in(config, has_accelerator=False)
    rollout = config.reward.reward_model.rollout
    assert rollout.engine_kwargs == {"vllm": {"distributed_executor_backend": "uni"}} and not rollout.enable_sleep_mode
    four = loaded(ON, PATH, "trainer.n_gpus_per_node=4", f"{RM}.rollout.tensor_model_parallel_size=4")
    assert judge_settings.replicas(four) == 1
    cpu_values.fill_in(four)
    assert (judge_settings.replicas(four), pool_settings.replica_size(four.reward.reward_model.rollout)) == (4, 1)


def test_its_nodes_are_pinned_like_those_of_other_pools() -> None:
    assert pool_settings.resources(loaded(ON, PATH, *OWN, f"{RM}.node_resource=judges")) == {
        "judges": f"{RM}.node_resource"
    }


def test_a_scorer_without_base_url_asks_it_and_without_it_must_name_a_server() -> None:
    assert reward_settings.find_problems(loaded(ON, PATH, ALONE).reward) == []
    first, *_ = reward_settings.find_problems(loaded().reward)
    assert "scorer_kwargs.base_url: must be given" in first and "reward.reward_model.enable=true" in first
    elsewhere = loaded(ON, PATH, ALONE, "reward.scorer_kwargs.base_url=http://judge/v1").reward
    assert ["scorer_kwargs.model: must be given" in line for line in reward_settings.find_problems(elsewhere)] == [True]


def test_its_settings_have_the_names_and_defaults_of_verl() -> None:
    file = Path(str(distribution("verl").locate_file("verl/trainer/config/reward/reward.yaml")))
    every = flat_settings(yaml.safe_load(file.read_text())["reward_model"])
    leaves = {name: value for name, value in every if not (isinstance(value, dict) and value)}
    upstream = {name: value for name, value in leaves.items() if not name.endswith("_target_")}
    config = loaded()
    values = {name: OmegaConf.select(config, f"{RM}.{name}", default="absent") for name in upstream}
    missing = [name for name, value in values.items() if value == "absent"]
    assert [name for name in missing if find_rule(f"{RM}.{name}") is None] == []
    differing = {name: value for name, value in upstream.items() if name not in missing and values[name] != value}
    assert differing == {"rollout.name": "???"}
