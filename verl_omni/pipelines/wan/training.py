"""Wan for the trainer: velocity of a recorded step of a video from the engine's embeddings."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from verl_omni.pipelines.guided_batch import guide, twice, with_negative
from verl_omni.pipelines.registry import PromptCheck
from verl_omni.pipelines.scheduler_config import EULER, UNIPC

CONDITIONS = ("prompt_embeds", "negative_prompt_embeds")
LAYERS = ("blocks.",)
LORA_TARGETS = tuple(
    f"{attention}.{layer}" for attention in ("attn1", "attn2") for layer in ("to_q", "to_k", "to_v", "to_out.0")
)
NOT_ADAPTED = r"condition_embedder\..*|proj_out"
CHAT_TEMPLATE = None
SCHEDULERS = (UNIPC, EULER)
DYNAMIC_SHIFT = False
LONGEST_TOKENIZER = "tokenizer"
ENGINE_GUIDANCE = 4.0  # the engine's default


def guidance(pipeline: Any) -> float:
    """The guidance scale that the engine uses: `guidance_scale`, or its default."""
    return ENGINE_GUIDANCE if pipeline.guidance_scale is None else float(pipeline.guidance_scale)


PADS_PROMPTS = True


def prompt_check(tokenizer: Any, max_sequence_length: int) -> PromptCheck:
    """See `registry.TrainingAdapter`."""
    return lambda ids, text: None if text else "it is empty, and Wan needs a prompt"


def prompt_rows(max_sequence_length: int, tokenizer_length: int) -> int:
    """The engine pads every prompt to `max_sequence_length`, and the model attends to the padding."""
    return max_sequence_length


def velocity(
    transformer: Any,
    batch: Mapping[str, Tensor],
    x: Tensor,
    timestep: Tensor,
    guidance_scale: float,
    *,
    dtype: torch.dtype,
) -> Tensor:
    """Predicted velocity, float32 in the shape of `x`, of latents `x` [B, C, T, h, w] at `timestep` [B].

    With `guidance_scale` > 1 guided as in the engine: negative + scale (positive - negative).
    """
    embeds = batch["prompt_embeds"]
    guided = guidance_scale > 1
    if guided:
        x = twice(x)
        timestep = twice(timestep)
        embeds = with_negative(batch, "prompt_embeds")
    # The timestep stays in float32: the model embeds it in float32.
    predicted: Tensor = transformer(
        hidden_states=x.to(dtype), timestep=timestep, encoder_hidden_states=embeds.to(dtype), return_dict=False
    )[0]
    return guide(predicted.float(), guidance_scale)[0] if guided else predicted.float()
