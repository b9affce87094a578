"""Prompts, images, checker and models of the example."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch

from verl_omni.models.shapes import prompts, scenes
from verl_omni.reward_loop.rewards import get_scorer

pytestmark = pytest.mark.slow  # draws images and makes a model

RNG = np.random.default_rng(0)
SCENES = [scenes.all_scenes()[i] for i in RNG.integers(len(scenes.all_scenes()), size=120)]
PICTURES = [scenes.draw(scenes.place(scene, RNG)) for scene in SCENES]


def test_no_held_out_prompt_is_trained_on() -> None:
    train, held = scenes.split()
    assert not {s.text for s in train} & {s.text for s in held} and len(train) + len(held) == 2496
    assert {s.text for s in prompts.training()} <= {s.text for s in train}
    assert {s.text for s in prompts.held_out()} <= {s.text for s in held} and len(prompts.held_out()) == 200


def test_the_scorer_always_reports_the_same_keys() -> None:
    scorer = get_scorer("shapes")
    drawn = torch.from_numpy((PICTURES[0] * 255).astype(np.uint8)).permute(2, 0, 1)
    good = scorer("shapes", drawn, SCENES[0].text, {})
    nothing = scorer("shapes", torch.zeros(3, 64, 64, dtype=torch.uint8), SCENES[0].text, {})
    assert good["score"] == 1.0 and nothing["score"] < 0.2 and set(good) == set(nothing)


def test_the_closed_form_vae_is_exact() -> None:
    from verl_omni.models.shapes.vae import linear_vae

    vae = linear_vae()
    images = torch.from_numpy(np.stack(PICTURES[:4])).float().permute(0, 3, 1, 2) * 2 - 1
    background = torch.tensor(scenes.BACKGROUND * 2 - 1).float().view(1, 3, 1, 1)
    with torch.no_grad():
        latents = vae.encode(images).latent_dist.mode()
        decoded = vae.decode(latents).sample
    assert (latents - torch.nn.functional.avg_pool2d(images - background, 2)).abs().max() < 1e-4
    wanted = torch.nn.functional.interpolate(latents, scale_factor=2, mode="bilinear") + background
    assert (decoded - wanted).abs().max() < 1e-3


def test_the_tiny_model_is_deterministic_and_loads(tmp_path: Path) -> None:
    from diffusers import StableDiffusion3Pipeline

    from verl_omni.pipelines.sd3.tiny_model import make_tiny_sd3

    for name in ("one", "two"):
        make_tiny_sd3(tmp_path / name)
    files = sorted(p.relative_to(tmp_path / "one") for p in (tmp_path / "one").rglob("*.safetensors"))
    digest = lambda name, path: hashlib.sha256((tmp_path / name / path).read_bytes()).hexdigest()  # noqa: E731
    assert files and all(digest("one", path) == digest("two", path) for path in files)
    pipe = StableDiffusion3Pipeline.from_pretrained(tmp_path / "one")
    image = pipe(
        "a red circle", height=64, width=64, num_inference_steps=2, max_sequence_length=16, output_type="np"
    ).images
    assert image.shape == (1, 64, 64, 3) and np.isfinite(image).all()
