"""Two ranks that share each sample's sequence, on the real engine: the driver gives both the same rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


def test_two_ranks_train_on_all_rows_and_one_reports_them(family: Any) -> None:
    """The engine's log-probabilities are those of the whole sequence, so the ranks must have put it together right."""
    running = family(
        "wan", "data.max_prompt_length=16", "actor_rollout_ref.rollout.pipeline.num_frames=5",
        "trainer.n_gpus_per_node=2", "actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size=2",
    )  # fmt: skip
    running.publish(0)
    before, samples = running.evaluate(), running.samples(version=0)
    answer = running.request_update(samples)
    assert [len(answer.meta_info["metrics"][name]) for name in ("actor/loss", "actor/grad_norm")] == [1, 1]
    (norm,), (difference,) = (answer.meta_info["metrics"][n] for n in ("actor/grad_norm", "rollout_corr/max_abs_diff"))
    assert norm > 0 and difference < 1e-4
    running.publish(1)
    assert not torch.equal(before.images, running.evaluate().images)
    assert running.update(running.samples(version=1))["rollout_corr/max_abs_diff"] < 1e-4
