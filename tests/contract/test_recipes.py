"""Complete command lines of recipes load in the trainer, and become jobs that train with the same settings."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyarrow import Table, parquet
from typer.testing import CliRunner

from contract.recipes import ALGO, LOSS, MODEL, RECIPES, ROLLOUT, Recipe
from omni_operator import plan
from omni_operator.api import load_job, read_job
from omni_operator.cli.main import app
from omni_operator.recipes import convert
from verl_omni.settings_schema.layout import flat_settings

EACH = pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)


def without(name: str, *settings: str) -> Recipe:
    """A recipe that leaves settings open."""
    recipe = RECIPES[name]
    return Recipe(f"{name}_open", recipe.family, recipe.settings, recipe.module, (*recipe.without, *settings))


# Settings that may name the algorithm.
NAMING = (f"{MODEL}.algorithm", f"{LOSS}.loss_mode", "algorithm.adv_estimator")
NOISE = f"{ALGO}.noise_level"
ESTIMATOR = "algorithm.adv_estimator"
OPEN = (
    without("sd35_nft_lora", NOISE),
    without("qwen_image_online_dpo_lora", NOISE),
    without("sd35_offline_dpo_lora", NOISE, f"{ROLLOUT}.n"),
)
# Settings that a job sets in another way, or to another name of the same value (docs/from-verl-omni/switching.md).
WRITTEN_OTHERWISE = (
    "actor_rollout_ref.model.path",
    "actor_rollout_ref.model.algorithm",
    "trainer.experiment_name",
    "trainer.default_local_dir",
    "trainer.resume_mode",
    "trainer.nnodes",
    "trainer.n_gpus_per_node",
    "actor_rollout_ref.rollout.n_gpus_per_node",
    "reward.reward_model.model_path",
    "reward.custom_reward_function",
    "reward.reward_functions",
    "reward.scorer",
    "reward.scorer_kwargs",
    "reward.reward_manager.name",
)
# A recipe that leaves these open gets the reference's default as a job, and ours as a command line.
OPEN_IN_RECIPES = ("trainer.max_actor_ckpt_to_keep", "reward.aggregation")


@EACH
def test_a_recipe_loads_in_the_trainer(recipe: Recipe) -> None:
    from verl_omni.trainer.settings import configuration

    config = configuration.load(recipe.arguments)
    assert config.trainer.experiment_name == recipe.name
    assert config.reward.scorer or config.reward.reward_functions, "a scorer of the reference is a built-in one"
    named = configuration.without_effect(recipe.arguments, config)
    assert "actor_rollout_ref.rollout.layered_summon" in named and all(named.values())


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [*RECIPES.values(), *OPEN], ids=lambda recipe: recipe.name)
def test_a_recipe_becomes_a_job_that_loads_in_the_trainer(recipe: Recipe, tmp_path: Path) -> None:
    from verl_omni.trainer.settings import configuration
    from verl_omni.workers.algorithms.estimators import ESTIMATORS

    script = tmp_path / "recipe.sh"
    path = tmp_path / "job.yaml"
    (tmp_path / "data" / "ocr").mkdir(parents=True)
    row = {"prompt": "a", "img_win": b"x", "img_lose": b"y"}
    for name in ("train", "test"):
        parquet.write_table(Table.from_pylist([row]), tmp_path / "data" / "ocr" / f"{name}.parquet")
    script.write_text(recipe.script.replace("$HOME", str(tmp_path)))
    converted = CliRunner().invoke(app, ["convert", str(script)])
    assert "left out: " not in converted.stderr
    document = yaml.safe_load(converted.stdout)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model_index.json").write_text("{}")
    document["spec"]["model"]["base"] = str(tmp_path / "model")  # a run on this machine takes no model id
    if judge := document["spec"]["reward"].get("model"):
        judge["base"] = str(tmp_path / "model")
    path.write_text(yaml.safe_dump(document))
    valid = CliRunner().invoke(app, ["validate", str(path)])
    assert valid.exit_code == 0, valid.output
    rendered = CliRunner().invoke(app, ["render", str(path)])
    assert rendered.exit_code == 0, rendered.output
    job = load_job(path).job
    job_config = configuration.load(plan.render_overrides(job, plan.local_layout(job, "/runs")))
    arguments = [argument.replace("$HOME", str(tmp_path)) for argument in recipe.arguments]
    # A job has one seed.
    recipe_config = configuration.load([*arguments, f"trainer.seed={recipe.given.get('data.seed', '0')}"])
    ours = _values(job_config)
    theirs = _values(recipe_config)
    assert ESTIMATORS["mix_grpo"] == ESTIMATORS["flow_grpo"]
    for values in (ours, theirs):
        if values[ESTIMATOR] == "mix_grpo":
            values[ESTIMATOR] = "flow_grpo"  # the same advantages
    unread = (f"{ROLLOUT}.n",) if recipe.given.get("algorithm.sample_source") == "offline" else ()
    expected = (*WRITTEN_OTHERWISE, *unread, *(name for name in OPEN_IN_RECIPES if name not in recipe.given))
    assert {
        name: (theirs.get(name), ours.get(name))
        for name in ours | theirs
        if ours.get(name) != theirs.get(name)
        and not f"{name}.".startswith(tuple(f"{setting}." for setting in expected))
    } == {}


@pytest.mark.slow
def test_a_job_has_the_algorithm_of_the_command_line_whatever_names_it() -> None:
    """The advantages and the sampler, with each combination of the settings that may name an algorithm."""
    from verl_omni.trainer.settings import configuration

    required = [
        "data.train_files=t.parquet",
        "actor_rollout_ref.model.path=a/model",
        "reward.custom_reward_function.path=s.py",
        f"{ALGO}.sde_window_size=2",
        "trainer.total_training_steps=1",
        "trainer.n_gpus_per_node=2",
        f"{ROLLOUT}.n=8",
    ]
    names = (None, "flow_grpo", "dance_grpo", "mix_grpo")
    compared = {}
    for named in itertools.product(names, repeat=len(NAMING)):
        arguments = [*required, *(f"{name}={value}" for name, value in zip(NAMING, named, strict=True) if value)]
        converted = convert(arguments)
        assert (
            convert(arguments[::-1]).document["spec"]["algorithm"]["name"]
            == converted.document["spec"]["algorithm"]["name"]
        )
        if {"dance_grpo", "mix_grpo"} <= {*named}:
            for order in (arguments, arguments[::-1]):
                with pytest.raises(
                    configuration.SettingsError, match="these are different algorithms; name one of them"
                ):
                    configuration.load(order)
                ((_, reason),) = convert(order).refused
                assert reason.endswith(": these are different algorithms; name one of them")
            continue
        assert converted.refused == ()
        job = read_job(plan.dump_yaml(converted.document), "job").job
        both = (
            configuration.load(arguments),
            configuration.load(plan.render_overrides(job, plan.local_layout(job, "/runs"))),
        )
        # Whether advantages are divided by the deviation of all, and the sampler's type.
        compared[named] = [
            (config.algorithm.global_std, config.actor_rollout_ref.rollout.algo.sde_type) for config in both
        ]
    assert {named: configs for named, configs in compared.items() if configs[0] != configs[1]} == {}


def _values(config: Any) -> dict[str, object]:
    """Every setting by its name with dots, with interpolations resolved; a list of one is its element."""
    from omegaconf import OmegaConf

    flat = flat_settings(OmegaConf.to_container(config, resolve=True))
    leaves = {name: value for name, value in flat if not (isinstance(value, dict) and value)}
    return {name: value[0] if isinstance(value, list) and len(value) == 1 else value for name, value in leaves.items()}
