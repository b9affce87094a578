"""Overrides are applied to the defaults as Hydra applies them, although the defaults are read only once."""

import pytest
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

from tests.ml import smallest_job
from verl_omni.agent_loop.sampling import row_params
from verl_omni.trainer.settings import configuration

GIVEN = [
    "data.train_files=[a,b]",
    "actor_rollout_ref.rollout.n=4",
    "actor_rollout_ref.actor.optim.lr=1e-3",
    "++reward.scorer_kwargs.color=red",
    "++data.apply_chat_template_kwargs.deep={one: 1}",
]


def test_the_result_is_that_of_hydra() -> None:
    with initialize_config_module("verl_omni.trainer.config", version_base="1.3"):
        expected = compose("diffusion_trainer", overrides=["loss=diffusion_nft", *smallest_job.REQUIRED, *GIVEN])
    loss = "actor_rollout_ref.actor.diffusion_loss.loss_mode=diffusion_nft"
    config = smallest_job.load(loss, *GIVEN)
    assert OmegaConf.to_container(config) == OmegaConf.to_container(expected)
    assert OmegaConf.is_struct(config) and OmegaConf.is_struct(expected)


def test_overrides_do_not_reach_the_next_configuration() -> None:
    first = smallest_job.load("data.seed=7", "++reward.scorer_kwargs.color=red")
    first.data.seed = 8
    second = smallest_job.load()
    assert (second.data.seed, second.reward.scorer_kwargs) == (0, {})


@pytest.mark.parametrize(
    "name",
    [
        "trainer.logger",
        "reward.custom_reward_function",
        "data.custom_cls.path",
        "actor_rollout_ref.model.algorithm",
        "actor_rollout_ref.actor.diffusion_loss.loss_mode",
        "trainer",
    ],
)
def test_a_deleted_setting_is_refused_with_what_to_write(name: str) -> None:
    message = smallest_job.refusal(f"~{name}")
    assert message == f"{name}: a setting cannot be deleted; write {name}=VALUE, or nothing for its default"


def test_deleting_a_setting_that_has_no_effect_has_none() -> None:
    overrides = [*smallest_job.REQUIRED, "~trainer.device"]
    config = configuration.load(overrides)
    assert config == smallest_job.load()
    assert list(configuration.without_effect(overrides, config)) == ["trainer.device"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("actor_rollout_ref.rollout.engine_kwargs.vllm_omni.request_batch_max_wait_ms", "10"),
        ("actor_rollout_ref.rollout.engine_kwargs.vllm_omni.max_num_seqs", "32"),
        ("actor_rollout_ref.rollout.pipeline.output_type", "latent"),
        ("actor_rollout_ref.model.lora_rank", "8"),
        ("actor_rollout_ref.actor.optim.override_optimizer_config", "{eps: 1e-8}"),
        ("actor_rollout_ref.model.algorithm", "flow_grpo"),
        ("trainer.video_fps", "24"),
    ],
)
def test_a_plus_adds_a_setting_or_replaces_its_value(name: str, value: str) -> None:
    """The reference has no default of some settings that have one here, and recipes add those."""
    plain = smallest_job.load(f"++{name}={value}")
    assert smallest_job.load(f"+{name}={value}") == plain
    assert smallest_job.load(f"{name}={value}") == plain


@pytest.mark.parametrize("quote", ["'", '"'])
def test_the_name_of_an_algorithm_may_have_quotes(quote: str) -> None:
    loss = "actor_rollout_ref.actor.diffusion_loss.loss_mode"
    sampled_for = "actor_rollout_ref.model.algorithm"
    overrides = [f"{loss}={quote}dance_grpo{quote}", f"{sampled_for}={quote}flow_grpo{quote}"]
    assert smallest_job.load(*overrides) == smallest_job.load(f"{loss}=dance_grpo")


def test_settings_of_hydra_itself_are_accepted_where_they_change_nothing() -> None:
    nothing = [
        "hydra.job.chdir=False",
        "--config-name=diffusion_trainer",
        "--config-name='diffusion_trainer.yaml'",
        "--config-path=config",
    ]
    overrides = [*smallest_job.REQUIRED, "hydra.run.dir=.", "hydra.output_subdir=null", *nothing]
    config = configuration.load(overrides)
    assert config == smallest_job.load()
    assert smallest_job.load("--config-name", "diffusion_trainer", "-cp", "config") == smallest_job.load()
    assert list(configuration.without_effect(overrides, config)) == ["hydra.run.dir", "hydra.output_subdir"]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("hydra.job.chdir=true", "hydra.job.chdir: true is not supported; write false or null: a run stays"),
        ("--config-name=mine", "--config-name: mine is not supported; write diffusion_trainer"),
        ("-cn", "--config-name: has no value, such as from an empty variable of a script; write diffusion_trainer"),
        ("--config-path=/mine", "--config-path: /mine is not supported; write config"),
        *(
            (option, f"{option.partition('=')[0]}: is not an option of the trainer; settings are written as name=v")
            for option in ("--multirun", "--help", "-m", "--cfg=job")
        ),
        ("+trainer.nonsense=1", "trainer.nonsense: unknown setting"),
        ("actor_rollout_ref.rollout.n=${trainer.nothing}", "trainer.nothing"),
        ("data.train_files=a,b", "To use it as a list, use key=[value1,value2]"),
        ("trainer.experiment_name=a=b", "'trainer.experiment_name=a=b' cannot be read ("),
        ("trainer.project_name='x", "write its text in quotes, with a backslash"),
        ("data.train_files=[a,b", "'data.train_files=[a,b' cannot be read ("),
        *(
            (f"trainer.video_fps={value}", f"trainer.video_fps: must be positive, and at most 1000: {value}")
            for value in (0, -1, 1001)
        ),
    ],
)
def test_what_is_no_setting_or_no_value_is_refused(override: str, message: str) -> None:
    assert message in smallest_job.refusal(override)


@pytest.mark.parametrize(
    ("lines", "training", "evaluations"),
    [
        (["guidance_scale=2", "val.guidance_scale=4"], 2, 4),
        (["guidance_scale=2", "val.guidance_scale=4", "val.true_cfg_scale=3"], 2, 3),
        (["true_cfg_scale=2", "val.guidance_scale=4"], 2, 2),
        (["guidance_scale=2", "val.height=64"], 2, 2),
    ],
    ids=["followed", "set", "set for training", "not given"],
)
def test_the_guidance_of_evaluations_has_the_name_of_every_family_too(
    lines: list[str], training: float, evaluations: float
) -> None:
    """Qwen-Image reads `true_cfg_scale`, which the value of training must not keep."""
    rollout = "actor_rollout_ref.rollout."
    names = (name.replace("val.", "val_kwargs.pipeline.") if "val." in name else f"pipeline.{name}" for name in lines)
    rollout_settings = smallest_job.load(*(f"{rollout}{name}" for name in names)).actor_rollout_ref.rollout
    sampled = [
        row_params(rollout_settings, meta, 1, {})[0]["true_cfg_scale"]
        for meta in ({"global_steps": 0}, {"validate": True})
    ]
    assert sampled == [training, evaluations]
