"""Images in the report: fixed prompts over the steps, best and worst samples, previews, and smaller copies."""

import base64
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from verl_omni.trainer.generation.shown_samples import EXTREMES, extremes
from verl_omni.trainer.report.changed_settings import changed_settings
from verl_omni.trainer.report.page import image_rows, image_size, render
from verl_omni.trainer.report.run_data import load
from verl_omni.trainer.run.run_folder import PREVIEW, RunFolder, ShownSample

PIXELS = torch.zeros(3, 8, 8, dtype=torch.uint8)


def sample(score: float | None, **more: Any) -> ShownSample:
    return ShownSample(f"prompt {score}", 1, score, PIXELS, **more)


def test_the_best_and_the_worst_samples_are_chosen_once_each() -> None:
    scores = [0.5, None, 0.1, 0.9, 0.3]
    chosen = [(extreme.kind, extreme.score) for extreme in extremes([sample(score) for score in scores])]
    assert chosen == [("best", 0.9), ("best", 0.5), ("worst", 0.1), ("worst", 0.3)]
    assert extremes([sample(0.5), sample(None)]) == []
    assert len(extremes([sample(number / 100) for number in range(100)])) == 2 * EXTREMES


def test_the_page_has_a_slider_the_extremes_of_the_last_evaluation_and_previews(run: Path) -> None:
    folder = RunFolder(run)
    pair = torch.zeros(3, 8, 16, dtype=torch.uint8)
    preview = ShownSample("p", 3, 0.75, pair, kind=PREVIEW, training_score=0.25)
    for step in (2, 4):
        fixed = [ShownSample("a cat", 7, 0.1 * step, PIXELS)]
        folder.samples(step, [*fixed, *extremes([sample(0.1 * step), sample(0.9)]), preview], 24)
    loaded = load(run)
    assert [row.prompt for row in image_rows(loaded, [2, 4])] == ["a cat"], (
        "extremes and previews have sections of theirs"
    )
    assert image_size(loaded) == "small", "a preview is no strip of a video"
    text = render(loaded)
    assert 'data-steps="0 2 4"' in text
    assert "Best of step 4" in text and "Worst of step 4" in text and "Best of step 2" not in text
    assert "training 0.25, evaluation" in text and "<b>0.75</b>" in text
    assert "<summary>Earlier steps</summary>" in text


def test_a_run_with_two_evaluations_has_no_slider(begun: Callable[..., RunFolder]) -> None:
    assert "data-steps" not in render(load(begun(last=2, total=2).path))


def test_large_images_are_reduced_and_link_to_the_file(run: Path) -> None:
    RunFolder(run).samples(4, [ShownSample("a cat", 7, 0.5, torch.zeros(3, 1024, 768, dtype=torch.uint8))], 24)
    (image,) = load(run).images[4]
    kind, _, data = image.url.partition(",")
    assert kind == "data:image/webp;base64"
    assert Image.open(io.BytesIO(base64.b64decode(data))).size == (384, 512)
    assert (image.width, image.height, image.file) == (768, 1024, "samples/step_000004/00.png")
    assert re.search(r'<a href="samples/step_000004/00.png"><img src="data:image/webp', render(load(run)))


@pytest.mark.slow  # composes all settings
def test_settings_that_differ_from_the_defaults_are_listed_with_both_values(run: Path) -> None:
    changed = changed_settings(load(run).settings)
    assert changed["actor_rollout_ref.actor.optim.lr"][1] == "0.004"
    assert changed["actor_rollout_ref.actor.optim.lr"][0] not in ("0.004", "–")
    assert "trainer.nnodes" not in changed, "1 is the default"
    assert changed_settings({}) == {}
    mine = {"actor_rollout_ref": {"actor": {"diffusion_loss": {"loss_mode": "of an extension"}}}}
    assert changed_settings(mine) == {}
