"""Wan 2.2 5B on the real engine: other latents and another VAE than Wan 2.1, the same log-probabilities."""

from __future__ import annotations

import io
from typing import Any

import httpx
import pytest
import torch

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

MODULES = 2 * 8  # layers, projections of two attentions
FRAMES = 5


def test_engine_and_trainer_agree_before_and_after_an_update_that_changes_the_videos(family: Any) -> None:
    running = family("wan_5b", "data.max_prompt_length=16", f"actor_rollout_ref.rollout.pipeline.num_frames={FRAMES}")
    assert running.publish(0)["bound"] == MODULES
    before = running.evaluate()
    assert before.images.shape == (2, FRAMES, 3, 64, 64) and before.images.dtype == torch.uint8

    samples = running.samples(version=0)
    assert samples.tensors["all_latents"].shape == (4, 4, 6, 2, 4, 4), "steps + 1, channels, latent frames, h, w"
    changed = running.check_agreement(samples, before, MODULES)

    refused = with_image(running)
    assert refused.status_code >= 400 and "without an image" in refused.text
    assert torch.equal(running.evaluate().images, changed.images), "the engine serves on"


def with_image(running: Any) -> httpx.Response:
    """The answer of the HTTP API to a prompt with the first frame of the video."""
    from PIL import Image

    picture = io.BytesIO()
    Image.new("RGB", (64, 64), "red").save(picture, "PNG")
    asked = {"prompt": "a red circle", "size": "64x64", "num_frames": str(FRAMES), "num_inference_steps": "2"}
    return httpx.post(
        f"http://{running.stack.servers.server_addresses[0]}/v1/videos/sync",
        data=asked, files={"input_reference": ("first.png", picture.getvalue(), "image/png")}, timeout=120,
    )  # fmt: skip
