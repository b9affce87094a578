"""FLUX.1-dev for the trainer: velocity of a recorded step from the engine's embeddings."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from verl_omni.pipelines.scheduler_config import EULER

CONDITIONS = ("prompt_embeds", "pooled_prompt_embeds", "image_size", "guidance")
LAYERS = ("transformer_blocks.", "single_transformer_blocks.")
LORA_TARGETS = (  # the joint attention of image and text, and the attention of the single blocks
    *("attn.to_q", "attn.to_k", "attn.to_v", "attn.to_out.0"),
    *("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj", "attn.to_add_out"),
)
NOT_ADAPTED = r"x_embedder|context_embedder|proj_out|.*(norm|time_text_embed).*"
CHAT_TEMPLATE = None
SCHEDULERS = (EULER,)
DYNAMIC_SHIFT = True
MOST_TOKENS = 512  # the limit of the engine's `max_sequence_length`
LONGEST_TOKENIZER = "tokenizer_2"  # T5's tokenizer; the CLIP encoder reads the first 77 tokens
PADS_PROMPTS = True


def guidance(pipeline: Any) -> float:
    """1: the guidance scale is an input of the model, so a step is one forward pass."""
    return 1.0


def prompt_rows(max_sequence_length: int, tokenizer_length: int) -> int:
    """T5's tokens: the engine pads every prompt to `max_sequence_length`, and the model attends to the padding."""
    return max_sequence_length


def position_ids(rows: int, columns: int) -> Tensor:
    """Positions of the patches of an image, float32 [rows * columns, 3]: 0, row, column, as in diffusers."""
    row, column = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    return torch.stack([torch.zeros_like(row), row, column], dim=-1).flatten(0, 1).float()


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

    `batch["image_size"]` [B, 2]: rows and columns of patches, the same in each row. `batch["guidance"]` [B, 1]: the
    guidance scale, an input of the model.
    """
    embeds = batch["prompt_embeds"]
    rows, columns = batch["image_size"][0].tolist()
    predicted: Tensor = transformer(
        hidden_states=x.to(dtype),
        timestep=(timestep / 1000).to(dtype),
        guidance=batch["guidance"].squeeze(1),
        pooled_projections=batch["pooled_prompt_embeds"].to(dtype),
        encoder_hidden_states=embeds.to(dtype),
        txt_ids=torch.zeros(embeds.shape[1], 3, device=x.device),
        img_ids=position_ids(rows, columns).to(x.device),
        return_dict=False,
    )[0]
    return predicted.float()
