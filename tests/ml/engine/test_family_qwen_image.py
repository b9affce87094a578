"""Qwen-Image on the real engine: trainer and engine agree about log-probabilities, and an adapter takes effect."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

WEIGHTS = 77  # tensors of the transformer's file
MODULES = 2 * 8  # layers, projections of an attention


def test_engine_and_trainer_agree_before_and_after_an_update_that_changes_the_images(family: Any) -> None:
    # The template of a prompt alone has 115 tokens of the tiny tokenizer.
    running = family("qwen_image", "data.max_prompt_length=160")
    assert running.publish(0)["bound"] == MODULES
    before = running.evaluate()
    assert before.images.shape == (2, 3, 64, 64) and before.images.dtype == torch.uint8

    assert latent(running).shape == (16, 16), "patches, 4 channels each"

    samples = running.samples(version=0)
    assert samples.versions == [0] * 4
    assert samples.tensors["all_latents"].shape == (4, 4, 16, 16), "steps of the window + 1, patches, 4 channels each"
    assert samples.tensors["prompt_embeds"].shape == (4, 32, 32), "padded to max_sequence_length"
    lengths = samples.tensors["prompt_embeds_mask"].sum(dim=1).tolist()
    assert lengths[0] == lengths[1] < lengths[2] == lengths[3]
    assert samples.tensors["img_shapes"].tolist() == [[1, 4, 4]] * 4
    changed = running.check_agreement(samples, before, MODULES)

    assert running.send_base(1.5) == WEIGHTS
    assert (running.evaluate().images.int() - changed.images.int()).abs().max() > 1
    running.send_base(1.0)
    # The batch size affects rounding.
    assert (running.evaluate().images.int() - changed.images.int()).abs().max() <= 1


def latent(running: Any) -> torch.Tensor:
    """The latent of a sample without guidance."""
    import ray
    from transformers import AutoTokenizer

    from verl_omni.pipelines.qwen_image.training import CHAT_TEMPLATE

    tokenizer = AutoTokenizer.from_pretrained(f"{running.config.actor_rollout_ref.model.path}/tokenizer")
    asked = [{"role": "user", "content": "a red circle"}]
    ids = tokenizer.apply_chat_template(
        asked, chat_template=CHAT_TEMPLATE, add_generation_prompt=True, return_dict=False
    )
    params = {
        "height": 64, "width": 64, "num_inference_steps": 4, "max_sequence_length": 32, "seed": 1,
        "output_type": "latent",
    }  # fmt: skip
    sample = running.stack.servers.server_handles[0].generate.remote(
        prompt_ids=ids, sampling_params=params, request_id="latent"
    )
    made: torch.Tensor = ray.get(sample, timeout=120).diffusion_output
    return made
