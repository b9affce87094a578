"""Reward models on the second device: their scores, and the memory that they free while they rest."""

from pathlib import Path

import pytest
import torch

from tests.ml.reward_loop.test_clip_scorers import write_clip
from tests.ml.second_device import device
from verl_omni.reward_loop import rewards
from verl_omni.reward_loop.models import clip_model


def score(folder: Path, where: str) -> list[float]:
    pictures = list(torch.arange(2 * 3 * 32 * 32, dtype=torch.int32).remainder(251).to(torch.uint8).view(2, 3, 32, 32))
    infos = [{"prompt": prompt} for prompt in ("a red circle", "two blue squares")]
    models = {"model_name_or_path": str(folder), "processor_name_or_path": str(folder)}
    scores: list[float] = rewards.get_scorer("pickscore")(["t"] * 2, pictures, [""] * 2, infos, **models, device=where)
    return scores


def test_a_resting_model_has_no_memory_on_the_device_and_scores_again(second: torch.device, tmp_path: Path) -> None:
    write_clip(tmp_path)
    expected = score(tmp_path, "cpu")
    before = device.allocated()
    assert score(tmp_path, str(second)) == pytest.approx(expected, rel=1e-5)
    awake = device.allocated()
    assert awake > before
    for _ in range(2):  # a model that rests already
        clip_model.rest()
        assert device.allocated() == before
    assert score(tmp_path, str(second)) == pytest.approx(expected, rel=1e-5)
    assert device.allocated() == awake
    clip_model._LOADED.clear()
