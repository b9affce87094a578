"""Tests of settings between operator and trainer: trackers, unknown names."""

from __future__ import annotations

from pathlib import Path

import pytest

from verl_omni.trainer.settings import configuration


@pytest.mark.slow
def test_trackers_of_a_job_exist_in_verl() -> None:
    from verl.utils.tracking import Tracking

    from omni_operator import plan
    from omni_operator.api import load_job
    from omni_operator.api.crd.definition import schema

    example = Path(__file__).parents[2] / "examples" / "red-grpo.yaml"
    job = load_job(example, ["spec.observability.tracking={loggers: [console, tensorboard], project: red}"]).job
    config = configuration.load(plan.render_overrides(job, plan.local_layout(job, "/runs")))
    assert (list(config.trainer.logger), config.trainer.project_name) == (["console", "tensorboard"], "red")
    tracking = schema()["properties"]["spec"]["properties"]["observability"]["properties"]["tracking"]
    assert set(tracking["properties"]["loggers"]["items"]["enum"]) <= set(Tracking.supported_backend)
