"""FLUX.2-klein in the vLLM-Omni engine: token-id prompts, batched requests, recorded SDE steps."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from vllm_omni.diffusion.models.flux2_klein.pipeline_flux2_klein import Flux2KleinPipeline, compute_empirical_mu

from verl_omni.pipelines.flux2_klein.training import image_positions, text_positions
from verl_omni.pipelines.own_forward import OwnForward
from verl_omni.pipelines.post_processing import get_post_process_func
from verl_omni.pipelines.prompt_encoding import PromptEncoding
from verl_omni.pipelines.text_requests import text_requests
from verl_omni.utils.model_folder import INDEX

__all__ = ["Flux2KleinRolloutPipeline", "get_post_process_func", "get_pre_process_func"]

ARCHITECTURE = "Flux2KleinPipeline"
STEPS = 50  # upstream's defaults in `forward`
SEQUENCE_LENGTH = 512


get_pre_process_func = text_requests(ARCHITECTURE, "FLUX.2-klein", STEPS)


class Flux2KleinRolloutPipeline(PromptEncoding, OwnForward, Flux2KleinPipeline):
    """Upstream's pipeline with its own `forward`.

    Prompts may be token ids, and have negative prompts. Requests run as one batch. The steps in the SDE window of each
    request are recorded. Latents are packed: [B, patches, 4 C].
    """

    support_image_input = False  # upstream's takes images, also in the engine's warm-up
    default_steps = STEPS

    def __init__(self, *, od_config: Any, prefix: str = "") -> None:
        index = json.loads((Path(od_config.model) / INDEX).read_text(encoding="utf-8"))
        super().__init__(od_config=od_config, prefix=prefix, is_distilled=bool(index.get("is_distilled")))
        self.device = self._execution_device

    def encode(self, prompts: Sequence[Mapping[str, Any]], params: Any, height: int, width: int) -> dict[str, Tensor]:
        """See `OwnForward`."""
        length = params.max_sequence_length or SEQUENCE_LENGTH
        step = 2 * self.vae_scale_factor
        conditions = {"image_size": torch.tensor([height // step, width // step]).expand(len(prompts), -1)}
        guided = (params.guidance_scale or 0.0) > 1 and not self.is_distilled
        for name in ("prompt", "negative_prompt") if guided else ("prompt",):
            (embeds,) = self.encode_prompts(
                [prompt[name] for prompt in prompts],
                lambda texts: (self.encode_prompt(texts, max_sequence_length=length)[0],),
                {"max_sequence_length": length},
            )
            conditions[f"{name}_embeds"] = embeds.to(self.od_config.dtype)
        return conditions

    def initial_latents(self, generators: list[torch.Generator], height: int, width: int) -> Tensor:
        """See `OwnForward`."""
        channels = self.transformer.config.in_channels // 4
        dtype = self.od_config.dtype
        latents: Tensor
        latents, _ = self.prepare_latents(len(generators), channels, height, width, dtype, self.device, generators)
        return latents

    def noise_levels(self, steps: int, latents: Tensor) -> tuple[Tensor, Tensor]:
        """See `OwnForward`; the shift depends on the number of tokens and of steps."""
        shift = compute_empirical_mu(latents.shape[1], steps)
        self.scheduler.set_timesteps(sigmas=np.linspace(1.0, 1 / steps, steps), mu=shift, device=self.device)
        return self.scheduler.timesteps, self.scheduler.sigmas

    def velocity(self, x: Tensor, timestep: Tensor, conditions: Mapping[str, Tensor], guidance: float) -> Tensor:
        """See `OwnForward`."""
        rows, columns = conditions["image_size"][0].tolist()
        common = {
            "hidden_states": x,
            "timestep": timestep / 1000,
            "guidance": None,
            "txt_ids": text_positions(conditions["prompt_embeds"].shape[1]).to(x.device),
            "img_ids": image_positions(rows, columns).to(x.device),
            "return_dict": False,
        }
        guided = "negative_prompt_embeds" in conditions
        positive = {**common, "encoder_hidden_states": conditions["prompt_embeds"]}
        negative = {**common, "encoder_hidden_states": conditions["negative_prompt_embeds"]} if guided else None
        predicted: Tensor = self.predict_noise_maybe_with_cfg(guided, guidance, positive, negative, cfg_normalize=False)
        return predicted

    def decode(self, latents: Tensor, height: int, width: int) -> Tensor:
        """See `OwnForward`; latents have been normalized by the statistics of the VAE's batch norm."""
        step = 2 * self.vae_scale_factor
        norm = self.vae.bn
        deviation = torch.sqrt(norm.running_var + self.vae.config.batch_norm_eps)
        scaled = latents.to(self.vae.dtype) * deviation + norm.running_mean
        patches = scaled.transpose(1, 2).unflatten(2, (height // step, width // step))
        pixels: Tensor = self.vae.decode(self._unpatchify_latents(patches), return_dict=False)[0]
        return pixels
