"""Shapes of samples."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from verl_omni.workers.rollout.vllm_rollout.server.outputs import SampleFormat, to_diffusion_output


@pytest.mark.parametrize(
    ("engine", "sample"),
    [
        ((1, 3, 8, 8), (3, 8, 8)),
        ((3, 8, 8), (3, 8, 8)),
        ((1, 5, 3, 8, 8), (5, 3, 8, 8)),
        ((1, 1, 3, 8, 8), (1, 3, 8, 8)),  # a video of one frame stays a video
    ],
)
def test_images_and_videos_lose_only_the_batch_dimension(engine: tuple[int, ...], sample: tuple[int, ...]) -> None:
    result = SimpleNamespace(images=[torch.zeros(engine, dtype=torch.uint8)])
    made = to_diffusion_output(result, SampleFormat(), global_steps=2)
    assert made.diffusion_output.shape == sample and made.diffusion_output.dtype == torch.uint8
    assert made.extra_fields == {"global_steps": 2} and made.stop_reason == "completed"
