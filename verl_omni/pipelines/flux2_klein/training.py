"""FLUX.2-klein for the trainer: velocity of a recorded step from the engine's embeddings."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from verl_omni.pipelines.guided_batch import guide, twice, with_negative
from verl_omni.pipelines.scheduler_config import EULER

CONDITIONS = ("prompt_embeds", "image_size", "negative_prompt_embeds")
LAYERS = ("transformer_blocks.", "single_transformer_blocks.")
LORA_TARGETS = (  # the joint attention of image and text, and the fused projection of the single blocks
    *("attn.to_q", "attn.to_k", "attn.to_v", "attn.to_out.0"),
    *("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj", "attn.to_add_out"),
    "attn.to_qkv_mlp_proj",
)
NOT_ADAPTED = r"x_embedder|context_embedder|proj_out|.*(norm|modulation|time_guidance_embed).*"
CHAT_TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"  # the engine adds the tokenizer's own
SCHEDULERS = (EULER,)
DYNAMIC_SHIFT = True
LONGEST_TOKENIZER = "tokenizer"
PADS_PROMPTS = True


def guidance(pipeline: Any) -> float:
    """The guidance scale that the engine uses: `guidance_scale`."""
    return float(pipeline.guidance_scale or 1.0)


def prompt_rows(max_sequence_length: int, tokenizer_length: int) -> int:
    """The engine pads every prompt to `max_sequence_length`, and the model attends to the padding."""
    return max_sequence_length


def image_positions(rows: int, columns: int) -> Tensor:
    """Positions of the patches of an image, int64 [rows * columns, 4]: 0, row, column, 0, as in diffusers."""
    return torch.cartesian_prod(torch.arange(1), torch.arange(rows), torch.arange(columns), torch.arange(1))


def text_positions(length: int) -> Tensor:
    """Positions of a prompt's tokens, int64 [length, 4]: 0, 0, 0, token, as in diffusers."""
    zero = torch.arange(1)
    return torch.cartesian_prod(zero, zero, zero, torch.arange(length))


def velocity(
    transformer: Any,
    batch: Mapping[str, Tensor],
    x: Tensor,
    timestep: Tensor,
    guidance_scale: float,
    *,
    dtype: torch.dtype,
) -> Tensor:
    """Predicted velocity, float32 in the shape of `x`, of packed latents `x` [B, patches, 4 C] at `timestep` [B].

    `batch["image_size"]` [B, 2]: rows and columns of patches, the same in each row. With `guidance_scale` > 1 guided as
    in the engine, negative + scale (positive - negative), unless the model is distilled.
    """
    embeds = batch["prompt_embeds"]
    rows, columns = batch["image_size"][0].tolist()
    guided = guidance_scale > 1 and "negative_prompt_embeds" in batch  # the engine records none of a distilled model
    if guided:
        x = twice(x)
        timestep = twice(timestep)
        embeds = with_negative(batch, "prompt_embeds")
    # Without a batch dimension, diffusers would not split the positions over the ranks that share a sample.
    predicted: Tensor = transformer(
        hidden_states=x.to(dtype),
        timestep=(timestep / 1000).to(dtype),
        encoder_hidden_states=embeds.to(dtype),
        txt_ids=text_positions(embeds.shape[1])[None].to(x.device),
        img_ids=image_positions(rows, columns)[None].to(x.device),
        return_dict=False,
    )[0]
    return guide(predicted.float(), guidance_scale)[0] if guided else predicted.float()
