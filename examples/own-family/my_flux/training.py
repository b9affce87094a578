"""FLUX.1-dev for the trainer: velocity of a recorded step from the engine's embeddings."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


class FluxTraining:
    """The members of `verl_omni.pipelines.registry.TrainingAdapter`."""

    CONDITIONS = ("prompt_embeds", "pooled_prompt_embeds", "image_ids", "guidance")
    LAYERS = ("transformer_blocks.", "single_transformer_blocks.")
    LORA_TARGETS = (
        *("attn.to_q", "attn.to_k", "attn.to_v", "attn.to_out.0"),
        *("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj", "attn.to_add_out"),
    )
    CHAT_TEMPLATE = None

    def guidance(self, pipeline: Any) -> float:
        """1: the guidance scale of FLUX.1-dev is an input of the model, so a step is one forward pass."""
        return 1.0

    def prompt_rows(self, max_sequence_length: int, tokenizer_length: int) -> int:
        """T5's tokens: the engine pads every prompt to `max_sequence_length`, and the model attends to the padding."""
        return max_sequence_length

    def velocity(
        self,
        transformer: Any,
        batch: Mapping[str, Tensor],
        x: Tensor,
        timestep: Tensor,
        guidance_scale: float,
        *,
        dtype: torch.dtype,
    ) -> Tensor:
        """Predicted velocity, float32, of packed latents `x` [B, patches, 4 C] at `timestep` [B], from 0 to 1000."""
        embeds = batch["prompt_embeds"].to(dtype)
        found: Tensor = transformer(
            hidden_states=x.to(dtype),
            timestep=(timestep / 1000).to(dtype),
            guidance=batch["guidance"].squeeze(1),
            pooled_projections=batch["pooled_prompt_embeds"].to(dtype),
            encoder_hidden_states=embeds,
            txt_ids=torch.zeros(embeds.shape[1], 3, device=x.device),
            img_ids=batch["image_ids"][0],  # images of a run have one size
            return_dict=False,
        )[0]
        return found.float()
