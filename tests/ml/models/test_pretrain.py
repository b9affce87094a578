"""Pretraining of the example model is deterministic."""

from __future__ import annotations

import pytest
import torch

from verl_omni.models.shapes.pretrain import Recipe, pretrain

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def weights(recipe: Recipe) -> dict[str, torch.Tensor]:
    losses: list[float] = []
    made = pretrain(recipe, lambda step, loss: losses.append(loss))
    assert len(losses) == recipe.steps
    return dict(made.transformer.state_dict())


def test_pretraining_is_deterministic_by_seed() -> None:
    recipe = Recipe(steps=3, images=200, warm_up=1)
    one, again = weights(recipe), weights(recipe)
    assert all(torch.equal(one[name], again[name]) for name in one)
    other = weights(Recipe(steps=3, images=200, warm_up=1, seed=1))
    assert not all(torch.equal(one[name], other[name]) for name in one)
