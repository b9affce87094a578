"""Stable Diffusion 3 for the trainer: velocity of a recorded step from the engine's embeddings."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from verl_omni.pipelines.guided_batch import guide, twice, with_negative
from verl_omni.pipelines.scheduler_config import EULER

CONDITIONS = ("prompt_embeds", "pooled_prompt_embeds", "negative_prompt_embeds", "negative_pooled_prompt_embeds")
LAYERS = ("transformer_blocks.",)
LORA_TARGETS = (  # the joint attention of image and text
    "attn.to_q",
    "attn.to_k",
    "attn.to_v",
    "attn.to_out.0",
    "attn.add_q_proj",
    "attn.add_k_proj",
    "attn.add_v_proj",
    "attn.to_add_out",
)
NOT_ADAPTED = r".*(norm|time_text_embed).*"
CHAT_TEMPLATE = None
SCHEDULERS = (EULER,)
DYNAMIC_SHIFT = True
MOST_TOKENS = 512  # the limit of the engine's `max_sequence_length`
LONGEST_TOKENIZER = "tokenizer_3"  # T5's tokenizer; the two CLIP encoders read the first 77 tokens


def guidance(pipeline: Any) -> float:
    """The guidance scale that the engine uses: `guidance_scale`."""
    return float(pipeline.guidance_scale or 1.0)


PADS_PROMPTS = True


def prompt_rows(max_sequence_length: int, tokenizer_length: int) -> int:
    """CLIP and T5 tokens: without an attention mask, more rows would be attended to."""
    return tokenizer_length + max_sequence_length


def velocity(
    transformer: Any,
    batch: Mapping[str, Tensor],
    x: Tensor,
    timestep: Tensor,
    guidance_scale: float,
    *,
    dtype: torch.dtype,
) -> Tensor:
    """Predicted velocity, float32 [B, C, h, w], of latents `x` [B, C, h, w] at `timestep` [B].

    With `guidance_scale` > 1 guided as in the engine: negative + scale (positive - negative).
    """
    embeds = batch["prompt_embeds"]
    pooled = batch["pooled_prompt_embeds"]
    guided = guidance_scale > 1
    if guided:
        x = twice(x)
        timestep = twice(timestep)
        embeds = with_negative(batch, "prompt_embeds")
        pooled = with_negative(batch, "pooled_prompt_embeds")
    predicted: Tensor = transformer(
        hidden_states=x.to(dtype),
        timestep=timestep.to(dtype),
        encoder_hidden_states=embeds.to(dtype),
        pooled_projections=pooled.to(dtype),
        return_dict=False,
    )[0]
    return guide(predicted.float(), guidance_scale)[0] if guided else predicted.float()
