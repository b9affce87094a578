"""The trainer loads the overrides of a RayJob's entry point."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from omni_operator import plan
from omni_operator.api import load_job

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_trainer_loads_the_entry_point_of_an_example(path: Path) -> None:
    from verl_omni.trainer.settings import configuration

    job = load_job(path).job
    entry = plan.render_entrypoint(*plan.resolve_for_pods(job))
    line = entry.partition("; trap : INT TERM; ")[2].partition(' >"$pipe" 2>&1; ')[0]
    config = configuration.load(shlex.split(line)[3:])
    made, place = plan.resolve_for_pods(job)
    for name, value in plan.render_settings(made, place).items():
        found = OmegaConf.select(config, name)
        wanted = list(value) if isinstance(value, tuple) else value
        assert (OmegaConf.to_container(found) if OmegaConf.is_config(found) else found) == wanted, name
    assert config.ray_kwargs.ray_init.address == "auto"
    assert config.trainer.default_local_dir == f"/runs/{path.stem}"
