"""Stable Diffusion 3 inside vLLM-Omni: token-id prompts, a batch of requests, recorded SDE steps."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from typing_extensions import override
from vllm_omni.diffusion.data import DiffusionOutput
from vllm_omni.diffusion.models.sd3.pipeline_sd3 import StableDiffusion3Pipeline
from vllm_omni.diffusion.worker.request_batch import DiffusionRequestBatch

from verl_omni.pipelines.recorder import Recorder, get_post_process_func, with_text

__all__ = ["SD3RolloutPipeline", "get_post_process_func"]

STEPS = 28


class SD3RolloutPipeline(StableDiffusion3Pipeline):
    """Upstream's pipeline with three additions.

    Prompts may be token ids of the first CLIP tokenizer; requests run as one batch with a generator each;
    and the steps inside each request's SDE window are recorded with their log-probabilities.
    """

    supports_request_batch = True

    @override
    def forward(self, req: DiffusionRequestBatch) -> list[DiffusionOutput]:
        for request in req.requests:
            # The three encoders have tokenizers of their own, so ids of the first become text again.
            request.prompt = with_text(request.prompt, self.tokenizer)
        self._recorder = Recorder(req.sampling_params_list, self.device, steps=STEPS)
        outputs = super().forward(req)
        if not req.is_dummy_run():
            self._recorder.attach(outputs, "image")
        return outputs

    @override
    def diffuse(self, latents: Tensor, timesteps: Tensor, **conditions: Any) -> Tensor:
        return self._recorder.denoise(
            lambda x, t: self._velocity(x, t, **conditions),
            latents,
            timesteps,
            self.scheduler.sigmas,
            {name: value for name, value in conditions.items() if isinstance(value, Tensor)},
        )

    def _velocity(
        self,
        x: Tensor,
        timestep: Tensor,
        *,
        prompt_embeds: Tensor,
        pooled_prompt_embeds: Tensor | None,
        negative_prompt_embeds: Tensor | None,
        negative_pooled_prompt_embeds: Tensor | None,
        do_true_cfg: bool,
        guidance_scale: float,
        cfg_normalize: bool = False,
    ) -> Tensor:
        dtype = self.od_config.dtype
        common = {
            "hidden_states": x.to(dtype),
            "timestep": timestep.expand(x.shape[0]).to(device=self.device, dtype=dtype),
            "return_dict": False,
        }
        positive = {**common, "encoder_hidden_states": prompt_embeds, "pooled_projections": pooled_prompt_embeds}
        negative = {
            **common,
            "encoder_hidden_states": negative_prompt_embeds,
            "pooled_projections": negative_pooled_prompt_embeds,
        }
        return self.predict_noise_maybe_with_cfg(
            do_true_cfg, guidance_scale, positive, negative if do_true_cfg else None, cfg_normalize
        )
