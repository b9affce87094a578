"""Tiny random editing models: made offline, deterministic by seed."""

from functools import partial
from pathlib import Path
from typing import Any

from diffusers import QwenImageEditPipeline, QwenImageEditPlusPipeline

from verl_omni.models import text
from verl_omni.models.tiny_parts import WORDS
from verl_omni.pipelines.qwen_image.tiny_model import make_qwen_image

IMAGE_SIDE = 64  # side of input images in pixels; larger ones are reduced


def make_tiny_qwen_image_edit(path: Path, seed: int = 0) -> None:
    """Write the model like Qwen-Image-Edit: as the tiny Qwen-Image, with a processor of input images."""
    _make_qwen_image_edit(path, seed, QwenImageEditPipeline)


def make_tiny_qwen_image_edit_plus(path: Path, seed: int = 0) -> None:
    """Write the model like Qwen-Image-Edit-2511: noise levels of input images are 0 (`zero_cond_t`)."""
    _make_qwen_image_edit(path, seed, QwenImageEditPlusPipeline, zero_cond_t=True)


def _make_qwen_image_edit(path: Path, seed: int, pipeline: Any, **transformer: Any) -> None:
    tokenizer = text.qwen_tokenizer(WORDS, text.QWEN_VISION)
    processor = text.qwen_processor(tokenizer, max_pixels=IMAGE_SIDE**2)
    make_qwen_image(path, seed, partial(pipeline, processor=processor), tokenizer, **transformer)
