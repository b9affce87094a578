"""Training algorithms: settings, conflicts between settings, and training batches."""

import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from verl.utils.config import omega_conf_to_dataclass

from tests.ml import smallest_job
from tests.ml.smallest_job import FLOAT32, load
from verl_omni.samples import ScoredSamples
from verl_omni.trainer.settings import configuration
from verl_omni.workers.algorithms.base import training_algorithm
from verl_omni.workers.algorithms.description import ACTOR
from verl_omni.workers.algorithms.estimators import ESTIMATORS
from verl_omni.workers.algorithms.registered import ALGORITHMS, job_names
from verl_omni.workers.algorithms.registry import optimizer_steps

pytestmark = pytest.mark.slow  # composes all settings for each

LOSS = "actor_rollout_ref.actor.diffusion_loss"
CORRECTION = "algorithm.rollout_correction"
PARAM_DTYPE = "actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype"
SEQUENCE = "actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size"
NFT, DPO, GUARD, DPPO = (
    f"{LOSS}.loss_mode={name}" for name in ("diffusion_nft", "diffusion_dpo", "grpo_guard", "flow_dppo")
)


def loss_of(config: Any) -> Any:
    return omega_conf_to_dataclass(config.actor_rollout_ref.actor.diffusion_loss)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_settings_file_of_an_algorithm_has_the_defaults_of_its_type(name: str) -> None:
    config = load(f"{LOSS}.loss_mode={name}", "actor_rollout_ref.model.lora_rank=4")
    algorithm = training_algorithm(name)
    assert type(loss_of(config)) is algorithm.settings
    assert loss_of(config) == algorithm.settings()
    assert config.actor_rollout_ref.model.algorithm == name


def test_each_settings_file_belongs_to_a_registered_algorithm() -> None:
    files = (Path(configuration.__file__).parents[1] / "config" / "loss").glob("*.yaml")
    assert {file.stem for file in files} == set(ALGORITHMS)


def test_a_job_offers_every_algorithm() -> None:
    assert {algorithm for algorithm, _ in job_names().values()} == set(ALGORITHMS)


def test_importing_the_registry_imports_neither_torch_nor_verl() -> None:
    """The trainer checks settings before it sets the environment variables that both read."""
    program = "import sys, verl_omni.workers.algorithms.registry; sys.exit(bool({'torch', 'verl'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize("loss", ALGORITHMS)
def test_settings_of_other_algorithms_are_accepted_and_named(loss: str) -> None:
    """The reference has one section for all losses, and recipes write settings of several."""
    of_others = {
        f"{LOSS}.clip_ratio": "1e-4",
        f"{LOSS}.dpo_beta": "2000.0",
        f"{LOSS}.mix_beta": "0.1",
        f"{LOSS}.kl_mask_threshold": "1e-5",
        f"{LOSS}.old_decay_max": "0.1",
        f"{LOSS}.adv_clip_max": "5.0",
        "actor_rollout_ref.actor.kl_loss_coef": "0.0",
        "++algorithm.old_policy_update_interval": "1",
    }
    overrides = [*smallest_job.REQUIRED, f"{LOSS}.loss_mode={loss}", "actor_rollout_ref.model.lora_rank=4"]
    written = [*overrides, *(f"{name}={value}" for name, value in of_others.items())]
    config = configuration.load(written)
    names = [name.lstrip("+") for name in of_others]
    unread = [name for name in names if OmegaConf.select(config, name, default="absent") == "absent"]
    assert unread, "no algorithm has the settings of all others"
    assert configuration.without_effect(written, config) == dict.fromkeys(unread, f"loss_mode={loss} does not read it")
    assert configuration.without_effect(overrides, config) == {}


def test_an_unknown_setting_of_a_loss_and_an_unknown_loss_are_refused() -> None:
    with pytest.raises(
        configuration.SettingsError, match=rf"{LOSS}\.mix_bta: unknown setting; did you mean .*mix_beta\?"
    ):
        load(NFT, f"{LOSS}.mix_bta=0.1")
    with pytest.raises(configuration.SettingsError, match=rf"{LOSS}\.mix_bta: unknown setting"):
        load(f"{LOSS}.mix_bta=0.1")
    with pytest.raises(configuration.SettingsError, match="no algorithm 'ppo'; one of "):
        load(f"{LOSS}.loss_mode=ppo")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["actor_rollout_ref.rollout.rollout_adapter=old"], "the trained policy must sample"),
        (["actor_rollout_ref.rollout.algo.noise_level=0"], "must be positive: flow_grpo learns from noise"),
        (["trainer.max_log_prob_difference=null"], "flow_grpo needs a number"),
        ([NFT, "trainer.max_log_prob_difference=0.1"], "there are no log-probabilities to compare"),
        (["trainer.max_velocity_difference=0"], "must be a positive number or null: 0"),
        ([NFT, "trainer.max_velocity_difference=0.1"], "there are no velocities to compare"),
        ([NFT, "actor_rollout_ref.rollout.rollout_adapter=default"], "the old policy must sample"),
        ([NFT, "actor_rollout_ref.model.policy_state_adapters=[default]"], "keeps an old policy"),
        ([f"{CORRECTION}.rollout_is=token", f"{CORRECTION}.rollout_is_threshold=0.5_5.0"], "is not a positive number"),
        ([f"{CORRECTION}.rollout_rs=seq_mean_k1"], "None is not a threshold of seq_mean_k1; write two"),
        ([f"{CORRECTION}.rollout_rs=geometric", f"{CORRECTION}.rollout_rs_threshold=2"], "is not one of token_k1"),
        ([NFT, f"{CORRECTION}.rollout_rs=token_k2", f"{CORRECTION}.rollout_rs_threshold=2"], "no log-probabilities"),
        ([NFT, "algorithm.old_policy_decay_schedule=linear"], "linear is not supported; write null or copy"),
        ([NFT, "algorithm.old_policy_update_interval=0"], "must be a whole number from 1: 0"),
        (["algorithm.timestep_fraction=0"], "must be above 0 and at most 1: 0"),
        ([DPO, "algorithm.timestep_fraction=0.5"], "it trains on random noise levels; it needs 1.0"),
        ([CORRECTION + "=null"], "rollout_correction: must be a group of settings, not null"),
        ([NFT, f"{CORRECTION}.bypass_mode=true"], "there are no log-probabilities to recompute"),
        ([NFT, f"{CORRECTION}.rollout_is=token"], "there are no log-probabilities to compare"),
        ([GUARD, f"{CORRECTION}.bypass_mode=true"], "the engine does not record the means of its steps"),
        ([GUARD, "actor_rollout_ref.rollout.algo.sde_type=cps"], "cps does not go with grpo_guard"),
        ([DPPO, f"{CORRECTION}.bypass_mode=true"], "the engine does not record the means of its steps"),
        ([DPPO, f"{LOSS}.add_kl_coefficient=false"], "is always the KL of the step's densities"),
        ([NFT, "actor_rollout_ref.model.algorithm=flow_grpo"], "must sample for the algorithm that is trained"),
        ([DPO, "algorithm.adv_estimator=dance_grpo"], "it orders samples without advantages; it needs flow_grpo"),
        ([DPO, "actor_rollout_ref.rollout.n=1"], "at least 2 are needed"),
        ([DPO, "trainer.n_gpus_per_node=3"], "train_batch_size: 3 ranks cannot share 8 pairs evenly"),
        (["trainer.n_gpus_per_node=3"], "train_batch_size: 3 ranks cannot share 64 samples evenly"),
        (["trainer.n_gpus_per_node=6", f"{SEQUENCE}=2"], "batch_size: 3 groups of ranks cannot share 64 samples"),
        (["trainer.n_gpus_per_node=6", f"{SEQUENCE}=4"], "parallel_size: 4 does not divide the 6 ranks"),
        (
            ["data.train_batch_size=6", "trainer.n_gpus_per_node=3"],
            "ppo_mini_batch_size: 3 ranks cannot share 64 samples evenly",
        ),
        (
            ["actor_rollout_ref.rollout.algo.sde_type=cps", "actor_rollout_ref.rollout.algo.sde_window_range=[5,10]"],
            "contains the last of 10 steps",
        ),
        (
            [
                "actor_rollout_ref.rollout.algo.sde_type=cps",
                "actor_rollout_ref.rollout.algo.sde_window_range=[0,10]",
                "actor_rollout_ref.rollout.algo.sde_window_size=2",
                "actor_rollout_ref.rollout.algo.sample_strategy=progressive",
            ],
            "contains the last of 10 steps",
        ),
        (["actor_rollout_ref.rollout.pipeline.num_inference_steps=1"], "steps: must be at least 2: noise is in all"),
        ([NFT, "actor_rollout_ref.rollout.algo.init_same_noise=true"], "would be the same"),
        (
            [
                "actor_rollout_ref.rollout.algo.sde_contiguous=false",
                "actor_rollout_ref.rollout.algo.sample_strategy=progressive",
            ],
            "a progressive window is contiguous",
        ),
    ],
)
def test_conflicting_settings_are_refused_at_the_start(overrides: list[str], message: str) -> None:
    with pytest.raises(configuration.SettingsError, match=message):
        load(*overrides)


def batch(config: Any, samples: ScoredSamples, seed: int) -> dict[str, torch.Tensor]:
    loss = loss_of(config)
    return training_algorithm(loss.loss_mode).training_batch(samples, loss, config, seed)


def arguments(config: Any, step: int) -> dict[str, Any]:
    return training_algorithm(loss_of(config).loss_mode).update_arguments(config, step)


@pytest.mark.parametrize(
    ("algorithm", "window"), [(f"{LOSS}.loss_mode=flow_grpo", "5,9"), (NFT, "0,10"), (DPO, "0,10")]
)
def test_only_where_log_probabilities_count_a_window_of_cps_ends_before_the_last_step(
    algorithm: str, window: str
) -> None:
    algo = "actor_rollout_ref.rollout.algo"
    assert load(algorithm, f"{algo}.sde_type=cps", f"{algo}.noise_level=0.7", f"{algo}.sde_window_range=[{window}]")


@pytest.mark.parametrize(
    ("loss", "wrong"),
    [
        *((NFT, wrong) for wrong in ("draws=0", "mix_beta=-1", "adaptive_weight_min=0", "ref_kl_coef=-1")),
        (NFT, "old_decay_max=1"),
        (DPPO, "kl_mask_threshold=-1"),
    ],
)
def test_numbers_out_of_range_are_refused(loss: str, wrong: str) -> None:
    with pytest.raises(configuration.SettingsError, match=rf"{LOSS}\.{wrong.partition('=')[0]}: must "):
        load(loss, f"{LOSS}.{wrong}")


def scored(scores: list[float]) -> ScoredSamples:
    """Two prompts, the rows in turn; every tensor says its row."""
    rows = torch.arange(len(scores)).float()
    return ScoredSamples(
        tensors={"clean_latents": rows.view(-1, 1, 1, 1).expand(-1, 2, 2, 2), "prompt_embeds": rows.view(-1, 1, 1)},
        images=torch.zeros(len(scores), 3, 1, 1, dtype=torch.uint8),
        scores=torch.tensor(scores),
        extras={},
        versions=[0] * len(scores),
        groups=["a", "b"] * (len(scores) // 2),
        seconds=0.0,
        scoring_seconds=0.0,
    )


def test_flow_grpo_gets_advantages_and_the_sampler_settings() -> None:
    rollout = "actor_rollout_ref.rollout"
    config = load(
        "actor_rollout_ref.model.architecture=StableDiffusion3Pipeline",
        f"{rollout}.pipeline.guidance_scale=1.5",
        f"{rollout}.algo.sde_type=dance_sde",
        f"{rollout}.algo.noise_level=0.3",
        f"{CORRECTION}.rollout_is=token",
        f"{CORRECTION}.rollout_is_threshold=1.5",
        *FLOAT32,
    )
    rows = batch(config, scored([1.0, 0.0, 3.0, 0.0]), seed=1)
    assert rows["advantages"].sign().tolist() == [-1, 0, 1, 0]
    assert arguments(config, step=7) == {
        "noise_level": 0.3,
        "sde_type": "dance_sde",
        "guidance_scale": 1.5,
        "tolerance": 1e-3,
        "velocity_tolerance": 1e-3,
        "limit_by_depth": False,
        "timestep_fraction": 1.0,
        "bypass_mode": False,
        "rollout_is": "token",
        "rollout_is_threshold": 1.5,
        "rollout_rs": None,
        "rollout_rs_threshold": None,
    }


@pytest.mark.parametrize(
    ("overrides", "by_group"),
    [
        ([], False),
        (["algorithm.adv_estimator=dance_grpo"], False),
        ([f"{LOSS}.loss_mode=dance_grpo"], False),
        (["algorithm.global_std=false"], True),
        (["algorithm.adv_estimator=dance_grpo", "algorithm.global_std=false"], True),
    ],
)
def test_advantages_are_divided_by_the_deviation_of_the_batch_or_of_each_prompt(
    overrides: list[str], by_group: bool
) -> None:
    rows = batch(load(*overrides), scored([0.0, 0.0, 1.0, 9.0]), seed=1)
    first, second = rows["advantages"][2:].tolist()
    assert (first == pytest.approx(second, rel=1e-3)) is by_group, "rewards of one prompt spread nine times as far"


NAN = float("nan")


@pytest.mark.parametrize("overrides", [[], ["algorithm.global_std=false"], ["algorithm.adv_estimator=mine"]])
def test_a_sample_without_a_reward_has_advantage_0_whatever_the_scores_are(
    overrides: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with an estimator of the user, which gets the other samples only."""
    monkeypatch.setitem(ESTIMATORS._entries, "mine", f"{__name__}:ranks")
    rows = batch(load(*overrides), scored([-20.0, 0.0, NAN, NAN, -22.0, 8.0]), seed=1)
    assert rows["advantages"].sign().tolist() == [1, -1, 0, 0, -1, 1]


def ranks(rewards: torch.Tensor, groups: list[str], settings: Any) -> torch.Tensor:
    assert rewards.isfinite().all() and groups == ["a", "b", "a", "b"]
    return torch.tensor([1.0, -1.0, -1.0, 1.0])


def test_diffusion_nft_takes_a_sample_without_a_reward_for_neither_good_nor_bad() -> None:
    rows = batch(load(NFT, "actor_rollout_ref.model.lora_rank=4"), scored([-20.0, 0.0, NAN, NAN, -22.0, 8.0]), seed=1)
    assert rows["optimality"].sub(0.5).sign().tolist() == [1, -1, 0, 0, -1, 1]


def test_online_dpo_pairs_samples_that_have_a_reward() -> None:
    rows = batch(load(DPO, "actor_rollout_ref.model.lora_rank=4"), scored([NAN, NAN, -22.0, 8.0, -20.0, NAN]), seed=1)
    assert rows["clean_latents"][:, :, 0, 0, 0].tolist() == [[4.0, 2.0], [3.0, 3.0]]
    assert rows["preferred"].tolist() == [1.0, 0.0], "one reward is no preference"


def test_each_step_draws_other_steps_of_a_sample() -> None:
    samples = scored([1.0, 0.0, 3.0, 0.0])
    config = load(
        "algorithm.timestep_fraction=0.5", "actor_rollout_ref.model.architecture=StableDiffusion3Pipeline", *FLOAT32
    )
    first, again, later = (batch(config, samples, seed)["draw_seeds"].tolist() for seed in (1, 1, 2))
    assert first == again and not set(first) & set(later) and len(set(first)) == 4
    assert arguments(config, step=1)["timestep_fraction"] == 0.5
    assert "draw_seeds" not in batch(load(), samples, 1)


@pytest.mark.parametrize(
    ("overrides", "limit"),
    [  # in bfloat16 the actor raises it by depth and guidance, unless it is given
        (FLOAT32, 1e-3),
        ((*FLOAT32, f"{PARAM_DTYPE}=bf16"), 0.05),
        ((*FLOAT32, "actor_rollout_ref.rollout.dtype=bfloat16"), 0.05),
        ((*FLOAT32, "actor_rollout_ref.actor.fsdp_config.model_dtype=bfloat16"), 1e-3),  # all weights are trained
        (
            (
                *FLOAT32,
                "actor_rollout_ref.actor.fsdp_config.model_dtype=bfloat16",
                "actor_rollout_ref.model.lora_rank=4",
            ),
            0.05,
        ),
        ((f"{PARAM_DTYPE}=bf16", "trainer.max_velocity_difference=0.02"), 0.02),
    ],
)
def test_the_coarser_dtype_determines_how_far_velocities_may_differ(overrides: tuple[str, ...], limit: float) -> None:
    config = load("actor_rollout_ref.model.architecture=StableDiffusion3Pipeline", *overrides)
    update = arguments(config, step=1)
    assert (update["velocity_tolerance"], update.get("limit_by_depth", False)) == (limit, limit == 0.05)


def test_schedules_count_the_optimizer_steps_of_the_run() -> None:
    config = load(
        "trainer.total_training_steps=5",
        "data.train_batch_size=6",
        f"{ACTOR}.ppo_mini_batch_size=4",
        f"{ACTOR}.ppo_epochs=3",
    )
    assert optimizer_steps(config) == 5 * 2 * 3


@pytest.mark.parametrize("name", ALGORITHMS)
def test_ranges_are_of_settings_that_the_algorithm_has_and_hold_for_its_defaults(name: str) -> None:
    kind = training_algorithm(name).settings
    assert ALGORITHMS[name].limits.keys() <= {field.name for field in fields(kind)}
    assert list(ALGORITHMS[name].out_of_range(kind())) == []


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_registry_knows_the_rows_of_an_algorithm(name: str) -> None:
    assert ALGORITHMS[name].rows_per_prompt(8) == training_algorithm(name).rows_per_prompt(8)


def test_nft_trains_on_every_sample_with_its_optimality() -> None:
    config = load(NFT, f"{LOSS}.adv_clip_max=0.5")
    rows = batch(config, scored([1.0, 5.0, 3.0, 5.0]), seed=1)
    assert rows["optimality"].tolist() == [0.0, 0.5, 1.0, 0.5]
    assert rows["clean_latents"].shape == (4, 2, 2, 2) and len(set(rows["draw_seeds"].tolist())) == 4
    other_seed = batch(config, scored([1.0, 5.0, 3.0, 5.0]), seed=2)
    assert not set(other_seed["draw_seeds"].tolist()) & set(rows["draw_seeds"].tolist()), "each step has its own noise"
    assert arguments(config, step=7) == {"step": 7, "schedule": None, "interval": 1, "timestep_fraction": None}
    assert arguments(load(NFT, "algorithm.timestep_fraction=0.5"), step=7)["timestep_fraction"] == 0.5


def test_dpo_pairs_the_best_and_the_worst_sample_of_each_prompt() -> None:
    config = load(DPO, "actor_rollout_ref.model.lora_rank=4")
    rows = batch(config, scored([1.0, 5.0, 3.0, 5.0, 2.0, 5.0]), seed=1)
    assert rows["prompt_embeds"].flatten().tolist() == [2, 0, 1, 1], "prompt a: row 2 over row 0; prompt b: all equal"
    assert rows["preferred"].tolist() == [1, 0]
    assert rows["clean_latents"].shape == (2, 2, 2, 2, 2) and rows["draw_seeds"].shape == (2,)
    assert arguments(config, step=7) == {}
