"""Pretraining of the example model is deterministic."""

import numpy as np
import pytest
import torch

from verl_omni.models.shapes import scenes
from verl_omni.models.shapes.pretrain import Recipe, pretrain

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def weights(recipe: Recipe) -> dict[str, torch.Tensor]:
    losses: list[float] = []
    pipeline = pretrain(recipe, lambda step, loss: losses.append(loss))
    assert len(losses) == recipe.steps
    return dict(pipeline.transformer.state_dict())


def test_pretraining_is_deterministic_by_seed() -> None:
    recipe = Recipe(steps=3, images=200, warm_up=1)
    first = weights(recipe)
    again = weights(recipe)
    assert all(torch.equal(first[name], again[name]) for name in first)
    other_seed = weights(Recipe(steps=3, images=200, warm_up=1, seed=1))
    assert not all(torch.equal(first[name], other_seed[name]) for name in first)


def test_wrong_colors_change_only_the_color_words_of_captions() -> None:
    rng = np.random.default_rng(0)
    train, held = scenes.split()
    assert [scenes.recolored(scene, 0.0, rng) for scene in train[::50]] == train[::50]
    pairs = [(scene, scenes.recolored(scene, 0.6, rng)) for scene in train]
    assert not {wrong.text for _, wrong in pairs} & {scene.text for scene in held}
    for scene, wrong in pairs:
        assert (wrong.category, wrong.relation) == (scene.category, scene.relation)
        assert [shape for _, shape in wrong.objects] == [shape for _, shape in scene.objects]
    same = [scene.objects == wrong.objects for scene, wrong in pairs if scene.category == "count"]
    # One color in six is drawn again: 0.4 + 0.6 / 6, and a little more, because held-out captions are drawn again.
    assert 0.3 < np.mean(same) < 0.75


def test_wrong_captions_give_another_model() -> None:
    recipe = Recipe(steps=2, images=200, warm_up=1)
    right = weights(recipe)
    wrong = weights(Recipe(steps=2, images=200, warm_up=1, wrong_colors=0.6))
    assert not all(torch.equal(right[name], wrong[name]) for name in right)
