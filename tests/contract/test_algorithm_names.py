"""The algorithms that a job offers are those of the trainer."""

from __future__ import annotations

from typing import get_args

from omni_operator.api.spec.training import Algorithm
from omni_operator.plan.overrides import LOSSES
from verl_omni.workers.algorithms.registered import ALGORITHMS


def test_a_job_offers_every_algorithm_of_the_trainer_and_no_other() -> None:
    offered = set(get_args(Algorithm.model_fields["name"].annotation)) - {"Custom"}
    assert offered == set(LOSSES)
    assert set(LOSSES.values()) == set(ALGORITHMS)
