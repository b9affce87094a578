"""Scores of several scorers, normalized before they are added."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from tests.ml.smallest_job import FLOAT32, load
from verl_omni.samples import ScoredSamples
from verl_omni.trainer.data.prompt_dataset import PromptOrder
from verl_omni.trainer.generation import sample_generation
from verl_omni.trainer.generation.training_batches import GeneratedBatch
from verl_omni.trainer.settings import reward_settings
from verl_omni.trainer.update.policy_update import PolicyUpdate

SEVERAL = "reward.reward_manager.name=MultiVisualRewardManager"
FUNCTIONS = "reward.reward_functions={red: {name: color, weight: 2}, jpeg: {}}"
NORMALIZED = "reward.aggregation=normalized_sum"
SAMPLES = ScoredSamples(
    tensors={"rollout_log_probs": torch.zeros(4, 1)},
    images=None,
    scores=torch.tensor([0.1, 0.2, 0.3, 0.4]),
    extras={"reward/red": [0.0, 0.1, 0.0, 0.4], "reward/jpeg": [-300.0, -400.0, -10.0, -20.0]},
    versions=[0] * 4,
    groups=["a", "a", "b", "b"],
    seconds=0.0,
    scoring_seconds=None,
)


def test_a_scorer_without_scores_is_named() -> None:
    missing = replace(SAMPLES, extras={"reward/red": [0.0] * 4})
    with pytest.raises(KeyError, match=r"no scores of reward\.reward_functions\.jpeg; samples have \['reward/red'\]"):
        sample_generation.training_scores(missing, load(SEVERAL, FUNCTIONS, NORMALIZED).reward)


@pytest.mark.parametrize(
    ("overrides", "messages"),
    [
        ([SEVERAL, FUNCTIONS], []),
        (["reward.scorer=color"], ["write reward.reward_manager.name=MultiVisualRewardManager"]),
        (
            [SEVERAL, FUNCTIONS, "reward.reward_manager.module.path=pkg://mine"],
            ["write reward.reward_manager.name=MultiVisualRewardManager"],
        ),
    ],
)
def test_where_it_cannot_work_it_is_refused(overrides: list[str], messages: list[str]) -> None:
    problems = list(reward_settings.normalization_problems(load(NORMALIZED, *overrides)))
    assert len(problems) == len(messages) and all(words in line for line, words in zip(problems, messages, strict=True))
    assert list(reward_settings.normalization_problems(load(*overrides))) == []


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        (
            "actor_rollout_ref.rollout.n",
            1,
            "write at least 2 as actor_rollout_ref.rollout.n",
        ),  # an estimator may take it
        ("algorithm.sample_source", "offline", "does not go with algorithm.sample_source=offline"),
    ],
)
def test_one_sample_of_a_prompt_and_pairs_of_a_data_set_are_refused(setting: str, value: Any, message: str) -> None:
    config = load(NORMALIZED, SEVERAL, FUNCTIONS)
    OmegaConf.update(config, setting, value)
    (line,) = reward_settings.normalization_problems(config)
    assert message in line


@pytest.mark.parametrize(("overrides", "signs"), [((), [-1, 1, -1, 1]), ((NORMALIZED,), [1, -1, -1, 1])])
def test_the_training_loop_normalizes_the_scores_of_a_step(overrides: tuple[str, ...], signs: list[int]) -> None:
    """jpeg has 30 times the weight of red: its scores decide where both are normalized."""
    config = load(
        SEVERAL,
        "reward.reward_functions={red: {name: color}, jpeg: {weight: 30}}",
        *overrides,
        "actor_rollout_ref.model.architecture=StableDiffusion3Pipeline",
        *FLOAT32,
    )
    requests: list[Any] = []

    def update_actor(request: Any) -> Any:
        requests.append(request)
        return SimpleNamespace(meta_info={"metrics": {}})

    workers = SimpleNamespace(update_actor=update_actor)
    exported: Any = SimpleNamespace(trained=lambda count: None)
    update = PolicyUpdate(config, workers, PromptOrder(2, 2, 0), exported)
    scores = {"reward/red": [0.0, 0.1, 0.0, 0.4], "reward/jpeg": [-0.1, -0.4, -0.4, -0.1]}
    update.train_on(GeneratedBatch(1, 0, replace(SAMPLES, extras=scores)))
    assert requests[0].batch["advantages"].sign().tolist() == signs
