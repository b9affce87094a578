"""FLUX.1-dev in the vLLM-Omni engine: token-id prompts, batched requests, recorded SDE steps."""

from typing import Any

import torch
from torch import Tensor
from typing_extensions import override
from vllm_omni.diffusion.data import DiffusionOutput
from vllm_omni.diffusion.models.flux.pipeline_flux import FluxPipeline
from vllm_omni.diffusion.worker.request_batch import DiffusionRequestBatch

from verl_omni.pipelines.engine_requests import decode_token_ids
from verl_omni.pipelines.post_processing import get_post_process_func
from verl_omni.pipelines.prompt_encoding import PromptEncoding
from verl_omni.pipelines.scheduler_config import received
from verl_omni.pipelines.text_requests import text_requests
from verl_omni.pipelines.trajectory_recorder import TrajectoryRecorder, version_of

__all__ = ["FluxRolloutPipeline", "get_post_process_func", "get_pre_process_func"]

ARCHITECTURE = "FluxPipeline"
STEPS = 28  # upstream's default in `forward`
GUIDANCE = 3.5  # diffusers' default


get_pre_process_func = text_requests(ARCHITECTURE, "FLUX.1-dev", STEPS)


class FluxRolloutPipeline(PromptEncoding, FluxPipeline):
    """Upstream's pipeline with two additions.

    Prompts may be token ids of the CLIP tokenizer. The steps in the SDE window of each request are recorded. Latents
    are packed: [B, patches, 4 C].

    Raises:
        ValueError: the model has no input for the guidance scale.
    """

    supports_request_batch = True

    def __init__(self, *, od_config: Any, prefix: str = "") -> None:
        super().__init__(od_config=od_config, prefix=prefix)
        if not self.transformer.guidance_embeds:
            raise ValueError(f"{od_config.model} has no input for the guidance scale; of FLUX.1, only dev is supported")
        # The engine looks for the layers of an adapter by this attribute; upstream lists them under another name.
        self.transformer.stacked_params_mapping = [
            (fused, part, index)
            for fused, parts in self.transformer.packed_modules_mapping.items()
            for index, part in enumerate(parts)
        ]

    @override
    def forward(self, req: DiffusionRequestBatch) -> list[DiffusionOutput]:
        for request in req.requests:
            request.prompt = decode_token_ids(request.prompt, self.tokenizer)  # T5 has another tokenizer
            params = request.sampling_params
            if params.guidance_scale is None:
                params.guidance_scale = GUIDANCE
            params.true_cfg_scale = 1.0  # the model is not guided a second time
        self._recorder = TrajectoryRecorder(
            req.sampling_params_list, self.device, steps=STEPS, dtype=self.od_config.dtype, version=version_of(self)
        )
        outputs = super().forward(req)
        if not req.is_dummy_run():
            self._recorder.attach(outputs, "image")
        return outputs

    @override
    def encode_prompt(
        self, prompt: list[str], prompt_2: str | None, prompt_embeds: Tensor | None = None, **options: Any
    ) -> tuple[Tensor, ...]:
        """Embeddings [B, L, D] and pooled ones [B, D], in the model's dtype; samples of a prompt have the same."""
        encode = super().encode_prompt
        if prompt_embeds is not None:
            return tuple(encode(prompt, prompt_2, prompt_embeds=prompt_embeds, **options))
        embeds, pooled = self.encode_prompts(
            prompt, lambda texts: tuple(encode(texts, prompt_2, **options)[:2]), {"prompt_2": prompt_2, **options}
        )
        dtype = self.od_config.dtype  # text encoders may keep the dtype of their files
        return embeds.to(dtype), pooled.to(dtype), torch.zeros(embeds.shape[1], 3, device=self.device)

    @override
    def prepare_latents(
        self, batch_size: int, channels: int, height: int, width: int, *rest: Any
    ) -> tuple[Tensor, Tensor]:
        step = 2 * self.vae_scale_factor
        self._image_size = torch.tensor([height // step, width // step])
        prepared: tuple[Tensor, Tensor] = super().prepare_latents(batch_size, channels, height, width, *rest)
        return prepared

    @override
    def diffuse(
        self,
        prompt_embeds: Tensor,
        pooled_prompt_embeds: Tensor,
        negative_prompt_embeds: None,
        negative_pooled_prompt_embeds: None,
        latents: Tensor,
        latent_image_ids: Tensor,
        text_ids: Tensor,
        negative_text_ids: None,
        timesteps: Tensor,
        do_true_cfg: bool,
        guidance: Tensor,
        true_cfg_scale: float,
        cfg_normalize: bool = False,
    ) -> Tensor:
        """Final latents [B, patches, 4 C] of initial noise `latents`, in the dtype of the VAE."""
        dtype = self.od_config.dtype

        def velocity(x: Tensor, timestep: Tensor) -> Tensor:
            predicted: Tensor = self.transformer(
                hidden_states=x.to(dtype),
                timestep=timestep.expand(len(x)).to(dtype) / 1000,
                guidance=guidance,
                pooled_projections=pooled_prompt_embeds,
                encoder_hidden_states=prompt_embeds,
                txt_ids=text_ids,
                img_ids=latent_image_ids.float(),
                return_dict=False,
            )[0]
            return predicted

        conditions = {
            "prompt_embeds": prompt_embeds,
            "pooled_prompt_embeds": pooled_prompt_embeds,
            "image_size": self._image_size.expand(len(latents), -1),
            "guidance": guidance[:, None],
        }
        final = self._recorder.denoise(
            velocity, latents, timesteps, self.scheduler.sigmas, conditions, received(timesteps, dtype)
        )
        return final.to(self.vae.dtype)
