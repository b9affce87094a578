"""Wan on the real engine: trainer and engine agree about log-probabilities of videos, and an adapter takes effect."""

from __future__ import annotations

import io
from typing import Any

import httpx
import numpy as np
import pytest
import torch

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

WEIGHTS = 69  # tensors of the transformer's file
MODULES = 2 * 8  # layers, projections of two attentions
FRAMES = 5


def test_engine_and_trainer_agree_before_and_after_an_update_that_changes_the_videos(family: Any) -> None:
    running = family("wan", "data.max_prompt_length=16", f"actor_rollout_ref.rollout.pipeline.num_frames={FRAMES}")
    assert running.publish(0)["bound"] == MODULES
    before = running.evaluate()
    assert before.images.shape == (2, FRAMES, 3, 64, 64) and before.images.dtype == torch.uint8
    assert before.scores.tolist() == pytest.approx([float(video.float().mean() / 255) for video in before.images])

    early = frames(over_http(running))
    assert early.shape == (FRAMES, 64, 64, 3)
    assert np.array_equal(early, frames(over_http(running)))

    samples = running.samples(version=0)
    assert samples.versions == [0] * 4
    assert samples.tensors["all_latents"].shape == (4, 4, 4, 2, 8, 8), "steps + 1, channels, latent frames, h, w"
    assert samples.tensors["prompt_embeds"].shape == (4, 32, 32)
    changed = running.check_agreement(samples, before, MODULES)

    told = frames(over_http(running))
    assert not np.array_equal(told, early), "drawn without the weights that training published"
    own, other = (np.abs(told - video.permute(0, 2, 3, 1).numpy()).mean() for video in changed.images)
    assert own < other * 0.75, "a compressed film of another prompt"

    running.publish(2)  # the last update of `check_agreement`: otherwise trainer and engine have different adapters
    changed = running.evaluate()
    for wrong in (1.01, 1.05):  # the engine's velocity is that times the trainer's
        running.send_base(wrong, only="proj_out")
        with pytest.raises(Exception, match="VelocityMismatch"):
            running.update(running.samples(version=2))
    assert running.send_base(1.5) == WEIGHTS
    assert (running.evaluate().images.int() - changed.images.int()).abs().max() > 1
    running.send_base(1.0)
    # The batch size affects rounding.
    assert (running.evaluate().images.int() - changed.images.int()).abs().max() <= 1
    assert running.update(running.samples(version=2))["actor/grad_norm"] > 0, "with the right weights they agree"

    for wrong, words in (
        ({"size": "large"}, "size"), ({"num_frames": 0}, "num_frames"), ({"num_inference_steps": -3}, "greater than"),
        ({"model": "another"}, "Model mismatch"), ({"seed": "x"}, "seed"),
    ):  # fmt: skip
        refused = over_http(running, **wrong)
        assert refused.status_code == 400 and words in refused.text


def over_http(running: Any, **other: Any) -> httpx.Response:
    """The first video of `evaluate`, by the HTTP API."""
    asked = {
        "prompt": "a red circle", "negative_prompt": "dark sky", "size": "64x64", "num_frames": FRAMES, "seed": 7,
        "num_inference_steps": 4, "guidance_scale": 3.0, **other,
    }  # fmt: skip
    form = {name: (None, str(value)) for name, value in asked.items()}
    return httpx.post(f"http://{running.stack.servers.server_addresses[0]}/v1/videos/sync", files=form, timeout=120)


def frames(answer: httpx.Response) -> np.ndarray:
    """Every frame of an MP4, [T, H, W, 3] from 0 to 255."""
    import av

    assert answer.status_code == 200, answer.text
    with av.open(io.BytesIO(answer.content)) as opened:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in opened.decode(video=0)]).astype(float)
