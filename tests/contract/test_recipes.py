"""Complete command lines of recipes load in the trainer, and become jobs that train with the same settings."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from contract.recipes import COMMON, RECIPES, Recipe
from omni_operator import plan
from omni_operator.api import load_job
from omni_operator.cli.main import app
from omni_operator.recipes import read_script

EACH = pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)


def test_the_recipes_are_as_large_as_published_ones() -> None:
    assert len(RECIPES) >= 14 and all(len(recipe.given) >= 55 for recipe in RECIPES.values())
    assert len({tuple(recipe.given.items()) for recipe in RECIPES.values()}) == len(RECIPES)
    assert len(COMMON) >= 40


def test_the_page_lists_every_recipe_with_its_model() -> None:
    page = (Path(__file__).parents[2] / "docs" / "switching.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"^\| command line .*\n\|.*\n((?:\|.*\n)+)", page, re.MULTILINE)
    assert table.splitlines() == [f"| `{name}` | `{recipe.family}` |" for name, recipe in RECIPES.items()]


@EACH
def test_a_recipe_loads_in_the_trainer(recipe: Recipe) -> None:
    from verl_omni.trainer import settings

    config = settings.load(recipe.arguments)
    assert config.trainer.experiment_name == recipe.name
    assert config.reward.scorer or config.reward.reward_functions, "a scorer of the reference is a built-in one"
    named = settings.without_effect(recipe.arguments, config)
    assert "actor_rollout_ref.rollout.layered_summon" in named and all(named.values())


@EACH
def test_a_script_is_read_as_the_shell_would_read_it(recipe: Recipe) -> None:
    call = read_script(recipe.script)
    assert list(call.arguments) == recipe.arguments
    assert call.unknown == ("$HOME",)


@pytest.mark.slow
@EACH
def test_a_recipe_becomes_a_job_that_loads_in_the_trainer(recipe: Recipe, tmp_path: Path) -> None:
    from verl_omni.trainer import settings

    script, path = tmp_path / "recipe.sh", tmp_path / "job.yaml"
    (tmp_path / "data" / "ocr").mkdir(parents=True)
    for name in ("train", "test"):
        (tmp_path / "data" / "ocr" / f"{name}.parquet").touch()
    script.write_text(recipe.script.replace("$HOME", str(tmp_path)))
    made = CliRunner().invoke(app, ["convert", str(script)])
    assert "left out: " not in made.stderr
    document = yaml.safe_load(made.stdout)
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
    found = settings.load(plan.render_overrides(job, plan.local_layout(job, "/runs")))
    # A job has one seed, and gets the reference's default of the window's.
    seeds = [f"trainer.seed={recipe.given.get('data.seed', '0')}"]
    window = "actor_rollout_ref.rollout.algo.sde_window_seed"
    own = settings.load([*recipe.arguments, *seeds, *([] if window in recipe.given else [f"{window}=0"])])
    for group in ("actor_rollout_ref.actor", "algorithm"):
        assert _of(found, group) == _of(own, group)
    for name in ("rollout.algo", "rollout.pipeline", "rollout.n", "model.lora_rank", "model.target_modules"):
        assert _of(found, f"actor_rollout_ref.{name}") == _of(own, f"actor_rollout_ref.{name}"), name


def _of(config: object, name: str) -> object:
    from omegaconf import OmegaConf

    found = OmegaConf.select(config, name)  # type: ignore[arg-type]
    return OmegaConf.to_container(found, resolve=True) if OmegaConf.is_config(found) else found


def test_a_model_and_data_that_are_missing_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    from verl_omni.trainer import settings, startup

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    config = settings.load(RECIPES["sd35_nft_lora"].arguments)
    with pytest.raises(FileNotFoundError, match=r"medium is no folder, and not in the hub cache"):
        startup.fit_to_machine(config, has_accelerator=True)
