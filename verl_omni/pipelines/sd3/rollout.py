"""Stable Diffusion 3 inside vLLM-Omni: token-id prompts, a batch of requests, recorded SDE steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override
from vllm_omni.diffusion.data import DiffusionOutput
from vllm_omni.diffusion.models.sd3.pipeline_sd3 import StableDiffusion3Pipeline
from vllm_omni.diffusion.worker.request_batch import DiffusionRequestBatch

from verl_omni.pipelines.recording import denoise
from verl_omni.pipelines.rollout_settings import wanted_of, window_of
from verl_omni.utils.vllm_omni.utils import load_tensor_adapter


def get_sd3_rollout_post_process_func(od_config: Any) -> Callable[[Any], Any]:
    """Pixels as uint8 [1, 3, H, W] instead of PIL images; latents pass through. Runs beside the engine."""

    def post_process(output: Any, sampling_params: Any = None) -> Any:
        wants_latents = getattr(sampling_params, "output_type", None) == "latent"
        if isinstance(output, Tensor):  # the engine's warm-up
            return output if wants_latents else to_uint8(output)
        image = output["payload"]["image"]
        return {**output, "payload": {"image": image if wants_latents else to_uint8(image)}}

    return post_process


def to_uint8(image: Tensor) -> Tensor:
    """A VAE's output in [-1, 1] as uint8 of the same shape."""
    return (image.float() / 2 + 0.5).clamp(0, 1).mul(255).round().to(torch.uint8)


class SD3RolloutPipeline(StableDiffusion3Pipeline):
    """Upstream's pipeline with three additions.

    Prompts may be token ids of the first CLIP tokenizer; requests run as one batch with a generator each;
    and the steps inside each request's SDE window are recorded with their log-probabilities.
    """

    supports_request_batch = True

    @override
    def forward(self, req: DiffusionRequestBatch) -> list[DiffusionOutput]:
        params = req.sampling_params_list
        for request in req.requests:
            request.prompt = self._with_text(request.prompt)
        self._generators = [_generator(p, self.device) for p in params]
        # The generator's own seed: a request that brought none must have a window of its own too.
        self._windows = [
            window_of(p.extra_args or {}, int(p.num_inference_steps or 28), generator.initial_seed())
            for p, generator in zip(params, self._generators, strict=True)
        ]
        self._wanted = [wanted_of(p.extra_args or {}) for p in params]
        outputs = super().forward(req)
        if req.is_dummy_run():
            return outputs
        for row, output in enumerate(outputs):
            self._attach(row, output)
        return outputs

    @override
    def diffuse(self, latents: Tensor, timesteps: Tensor, **conditions: Any) -> Tensor:
        self._conditions = conditions
        sigmas = self.scheduler.sigmas
        final, self._recorded = denoise(
            lambda x, t: self._velocity(x, t, **conditions), latents, timesteps, sigmas, self._windows, self._generators
        )
        self._sigma_max, self._final = float(sigmas[1]), final
        return final.to(latents.dtype)

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

    def _attach(self, row: int, output: DiffusionOutput) -> None:
        """Put what was asked for of one row, and the embeddings it was made from, beside its picture."""
        one, wanted, trajectory = slice(row, row + 1), self._wanted[row], self._recorded[row]
        rl: dict[str, Any] = {}
        if wanted.steps and trajectory is not None:
            output.trajectory_latents = trajectory.latents[None].cpu()
            output.trajectory_timesteps = trajectory.timesteps[None].cpu()
            output.trajectory_log_probs = trajectory.log_probs[None].cpu()
            rl |= {"all_sigmas": trajectory.sigmas[None].cpu(), "sigma_max": torch.tensor([[self._sigma_max]])}
        if wanted.clean_latents:
            rl["clean_latents"] = self._final[one].detach().float().cpu()
        if not rl:
            return
        embeds = {
            name: value[one].detach().float().cpu()
            for name, value in self._conditions.items()
            if isinstance(value, Tensor)
        }
        output.output = {"payload": {"image": output.output}, "metadata": {"rl": rl, "prompt_embeddings": embeds}}

    def _with_text(self, prompt: Any) -> Any:
        """The three encoders have tokenizers of their own, so ids of the first become text again."""
        if isinstance(prompt, str) or prompt.get("prompt"):
            return prompt
        made = dict(prompt)
        if (ids := prompt.get("prompt_token_ids")) is not None:
            made["prompt"] = self.tokenizer.decode(list(ids), skip_special_tokens=True)
        if (ids := prompt.get("negative_prompt_ids")) is not None:
            made["negative_prompt"] = self.tokenizer.decode(list(ids), skip_special_tokens=True)
        return made

    def _load_diffusion_lora_adapter(self, *, lora_request: Any, lora_path: str, dtype: torch.dtype) -> Any:
        """vLLM-Omni's hook: an adapter whose tensors are in the request; None sends it to the file loader."""
        return load_tensor_adapter(lora_request, dtype=dtype)


def _generator(params: Any, device: torch.device) -> torch.Generator:
    """The engine makes a generator where a seed was given; a request without one gets its own chance."""
    if isinstance(params.generator, torch.Generator):
        return params.generator
    params.generator = torch.Generator(device=device)
    params.generator.seed()
    return params.generator
