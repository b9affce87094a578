"""FLUX.1-dev in the vLLM-Omni engine: token-id prompts, batched requests, recorded SDE steps."""

from typing import Any

from torch import Tensor
from vllm_omni.diffusion.models.flux.pipeline_flux import FluxPipeline

from verl_omni.pipelines.engine_requests import decode_token_ids
from verl_omni.pipelines.post_processing import get_post_process_func
from verl_omni.pipelines.trajectory_recorder import TrajectoryRecorder, version_of

__all__ = ["FluxRolloutPipeline", "get_post_process_func"]  # the engine looks for both in this module

STEPS = 28  # the engine's default


class FluxRolloutPipeline(FluxPipeline):
    """Upstream's pipeline, whose steps are taken and recorded by a `TrajectoryRecorder`."""

    def __init__(self, *, od_config: Any, prefix: str = "") -> None:
        super().__init__(od_config=od_config, prefix=prefix)
        if not self.transformer.guidance_embeds:
            raise ValueError("my_flux trains FLUX.1-dev; this model has no input for the guidance scale")
        # Which layers are parts of a fused one: the engine looks for an adapter's layers by this attribute.
        self.transformer.stacked_params_mapping = [
            (fused, part, place)
            for fused, parts in self.transformer.packed_modules_mapping.items()
            for place, part in enumerate(parts)
        ]

    def forward(self, req: Any) -> list[Any]:
        """Generate a batch of requests."""
        for request in req.requests:
            request.prompt = decode_token_ids(request.prompt, self.tokenizer)  # T5 has another tokenizer
            request.sampling_params.true_cfg_scale = 1.0  # the model is not guided a second time
        self._recorder = TrajectoryRecorder(
            req.sampling_params_list, self.device, steps=STEPS, dtype=self.od_config.dtype, version=version_of(self)
        )
        outputs = super().forward(req)
        if not req.is_dummy_run():
            self._recorder.attach(outputs, "image")
        return outputs

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
        """Final latents [B, patches, 4 C] of initial noise `latents`; upstream's `forward` calls it."""
        dtype = self.od_config.dtype

        def velocity(x: Tensor, timestep: Tensor) -> Tensor:
            return self.transformer(
                hidden_states=x.to(dtype),
                timestep=timestep.expand(len(x)).to(dtype) / 1000,
                guidance=guidance,
                pooled_projections=pooled_prompt_embeds,
                encoder_hidden_states=prompt_embeds,
                txt_ids=text_ids,
                img_ids=latent_image_ids,
                return_dict=False,
            )[0]

        conditions = {
            "prompt_embeds": prompt_embeds,
            "pooled_prompt_embeds": pooled_prompt_embeds,
            "image_ids": latent_image_ids.expand(len(latents), -1, -1),
            "guidance": guidance[:, None],
        }
        # The model's timestep is rounded before it is divided: the trainer must get the rounded one.
        received = (timesteps.to(dtype) / 1000).float() * 1000
        return self._recorder.denoise(velocity, latents, timesteps, self.scheduler.sigmas, conditions, received)
