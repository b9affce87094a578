"""Stable Diffusion 3 in the vLLM-Omni engine: token-id prompts, batched requests, recorded SDE steps."""

from typing import Any

from torch import Tensor
from typing_extensions import override
from vllm_omni.diffusion.data import DiffusionOutput
from vllm_omni.diffusion.models.sd3.pipeline_sd3 import StableDiffusion3Pipeline
from vllm_omni.diffusion.worker.request_batch import DiffusionRequestBatch

from verl_omni.pipelines.engine_requests import decode_token_ids
from verl_omni.pipelines.post_processing import get_post_process_func
from verl_omni.pipelines.prompt_encoding import PromptEncoding
from verl_omni.pipelines.sd3.step_execution import STEPS, StepwiseSD3
from verl_omni.pipelines.text_requests import text_requests
from verl_omni.pipelines.trajectory_recorder import TrajectoryRecorder, version_of

ARCHITECTURE = "StableDiffusion3Pipeline"
__all__ = ["SD3RolloutPipeline", "get_post_process_func", "get_pre_process_func"]


get_pre_process_func = text_requests(ARCHITECTURE, "Stable Diffusion 3", STEPS)


class SD3RolloutPipeline(PromptEncoding, StepwiseSD3, StableDiffusion3Pipeline):
    """Upstream's pipeline with four additions.

    Prompts may be token ids of the first CLIP tokenizer. Requests run as one batch with a random generator each. The
    steps in the SDE window of each request are recorded with their log-probabilities. The engine may run one step at
    a time (`rollout.step_execution`).
    """

    supports_request_batch = True

    @override
    def forward(self, req: DiffusionRequestBatch) -> list[DiffusionOutput]:
        for request in req.requests:
            # Each of the three encoders has its own tokenizer, so ids of the first are decoded to text.
            request.prompt = decode_token_ids(request.prompt, self.tokenizer)
        self._recorder = TrajectoryRecorder(
            req.sampling_params_list, self.device, steps=STEPS, dtype=self.od_config.dtype, version=version_of(self)
        )
        outputs = super().forward(req)
        if not req.is_dummy_run():
            self._recorder.attach(outputs, "image")
        return outputs

    @override
    def encode_prompt(
        self, prompt: list[str], prompt_2: str, prompt_3: str, prompt_embeds: Tensor | None = None, **options: Any
    ) -> tuple[Tensor, ...]:
        """Embeddings [B, L, D] and pooled ones [B, D]; samples of a prompt have the same."""
        encode = super().encode_prompt
        if prompt_embeds is not None:
            return tuple(encode(prompt, prompt_2, prompt_3, prompt_embeds, **options))
        others = {"prompt_2": prompt_2, "prompt_3": prompt_3}
        return self.encode_prompts(prompt, lambda texts: encode(texts, **others, **options), {**others, **options})

    @override
    def diffuse(self, latents: Tensor, timesteps: Tensor, **conditions: Any) -> Tensor:
        return self._recorder.denoise(
            lambda x, t: self._velocity(x, t, **conditions),
            latents,
            timesteps,
            self.scheduler.sigmas,
            {name: value for name, value in conditions.items() if isinstance(value, Tensor)},
            received=timesteps.to(self.od_config.dtype),
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
