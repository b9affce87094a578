"""Qwen-Image-Edit on the real engine: trainer and engine agree about log-probabilities, and input images count."""

from __future__ import annotations

import base64
import io
from dataclasses import replace
from typing import Any

import httpx
import pytest
import torch
from PIL import Image

from tests.ml.engine.conftest import FAMILY_PROMPTS

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

MODULES = 2 * 8  # layers, projections of an attention


def test_engine_and_trainer_agree_before_and_after_an_update_that_changes_the_images(family: Any) -> None:
    limit = "actor_rollout_ref.rollout.pipeline.max_sequence_length=8192"  # of a recipe: the engine's own is 1024
    started = family("qwen_image_edit_plus", "data.max_prompt_length=400", limit)
    running = replace(started, rows=with_images(started.rows, ["red", "blue"]))
    assert running.publish(0)["bound"] == MODULES
    before = running.evaluate()
    assert before.images.shape == (2, 3, 64, 64) and before.images.dtype == torch.uint8

    samples = running.samples(version=0)
    assert samples.tensors["all_latents"].shape == (4, 4, 16, 16), "steps of the window + 1, patches, 4 channels each"
    assert samples.tensors["image_latents"].shape == (4, 16, 16)
    assert samples.tensors["img_shapes"].tolist() == [[[1, 4, 4], [1, 4, 4]]] * 4
    first, again, other, _ = samples.tensors["image_latents"]
    assert torch.equal(first, again) and not torch.equal(first, other)
    for place, color in ((0, "red"), (2, "blue")):
        length = int(samples.tensors["prompt_embeds_mask"][place].sum())
        expected = upstream_embeds(running.config.actor_rollout_ref.model.path, FAMILY_PROMPTS[place // 2], color)
        found = samples.tensors["prompt_embeds"][place, :length]
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    changed = running.check_agreement(samples, before, MODULES)

    swapped = replace(started, rows=with_images(started.rows, ["blue", "blue"])).evaluate()
    assert not torch.equal(swapped.images[0], changed.images[0]), "another input image, another sample"
    assert (swapped.images[1].int() - changed.images[1].int()).abs().max() <= 1
    with pytest.raises(Exception, match="edits 1 image"):
        started.evaluate()
    assert over_http(running, 96, 64).size == (64, 64)


def with_images(rows: list[dict[str, Any]], colors: list[str]) -> list[dict[str, Any]]:
    """The rows of the prompts with an input image each."""
    from verl_omni.trainer.prompt_images import with_images

    return [
        {**row, "raw_prompt": with_images(row["raw_prompt"], [Image.new("RGB", (64, 64), color)])}
        for row, color in zip(rows, colors, strict=True)
    ]


def upstream_embeds(model: str, prompt: str, color: str) -> torch.Tensor:
    """Embeddings [L, D] of a prompt in diffusers' pipeline."""
    from diffusers import QwenImageEditPlusPipeline

    pipeline = QwenImageEditPlusPipeline.from_pretrained(model)
    head = pipeline.prompt_template_encode.partition("{}")[0]
    pipeline.prompt_template_encode_start_idx = len(pipeline.tokenizer(head).input_ids)  # 64 of the released tokenizer
    with torch.no_grad():
        embeds, _ = pipeline._get_qwen_prompt_embeds(prompt, image=[Image.new("RGB", (64, 64), color)])
    return embeds[0]


def over_http(running: Any, width: int, height: int) -> Image.Image:
    """An image edited by the HTTP API."""
    picture = io.BytesIO()
    Image.new("RGB", (width, height), "red").save(picture, "PNG")
    answer = httpx.post(
        f"http://{running.stack.servers.server_addresses[0]}/v1/images/edits",
        data={"prompt": "a red circle", "size": "64x64", "num_inference_steps": "2"},
        files={"image": ("first.png", picture.getvalue(), "image/png")}, timeout=120,
    )  # fmt: skip
    assert answer.status_code == 200, answer.text
    return Image.open(io.BytesIO(base64.b64decode(answer.json()["data"][0]["b64_json"])))
