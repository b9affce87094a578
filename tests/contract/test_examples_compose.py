"""Every example is valid, and its overrides load in the trainer's settings."""

from __future__ import annotations

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from omni_operator import plan
from omni_operator.api import load_job
from omni_operator.api.reward import BUILTIN

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 4


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_named_like_its_file(path: Path) -> None:
    assert load_job(path).job.metadata.name == path.stem


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_trainer_loads_the_settings_of_an_example(path: Path) -> None:
    from verl_omni.trainer import settings

    job = plan.resolve_paths(load_job(path).job, str(path.parent))
    place = plan.local_layout(job, "/runs")
    config = settings.load(plan.render_overrides(job, place))
    for name, value in plan.render_settings(job, place).items():
        wanted = list(value) if isinstance(value, tuple) else value
        found = OmegaConf.select(config, name)
        assert (OmegaConf.to_container(found) if OmegaConf.is_config(found) else found) == wanted, name


def test_reserved_settings_exist_in_the_trainer() -> None:
    from omni_operator.api.reserved import RESERVED
    from verl_omni.trainer import settings

    required = ["data.train_files=t", "actor_rollout_ref.model.path=m", "trainer.total_training_steps=1"]
    config = settings.load(required)
    missing = object()
    assert [name for name in RESERVED if OmegaConf.select(config, name, default=missing) is missing] == []


@pytest.mark.slow
def test_the_builtin_scorers_are_those_of_the_trainer() -> None:
    from verl_omni.reward_loop.rewards import SCORERS

    # A job writes a reward server and a function as `http` and `function`, not by the name of a scorer.
    assert {*BUILTIN, "http", "http_batch", "python"} == set(SCORERS)
