"""Wan 2.2 A14B on the real engine: the first transformer computes timesteps from 875, the second one the others."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

MODULES = 2 * 8  # layers, projections of two attentions, in each transformer
FRAMES = 5


def test_each_transformer_agrees_with_the_trainer_and_gets_its_adapter(family: Any) -> None:
    running = family("wan_a14b", "data.max_prompt_length=16", f"actor_rollout_ref.rollout.pipeline.num_frames={FRAMES}")
    assert running.publish(0)["bound"] == 2 * MODULES
    before = running.evaluate()
    samples = running.samples(version=0)
    times = samples.tensors["all_timesteps"]
    assert bool((times[:, :2] >= 875).all() & (times[:, 2:] < 875).all()) and times.shape == (4, 3)
    running.check_agreement(samples, before, 2 * MODULES)

    assert running.publish(2)["bound"] == 2 * MODULES
    for component in ("transformer", "transformer_2"):  # with wrong weights of one, engine and trainer disagree
        running.send_base(1.05, only="proj_out", component=component)
        with pytest.raises(Exception, match="VelocityMismatch"):
            running.update(running.samples(version=2))
        running.send_base(1.0, component=component)
    assert running.update(running.samples(version=2))["actor/grad_norm"] > 0, "with the right ones they agree"
