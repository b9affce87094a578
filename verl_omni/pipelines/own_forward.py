"""Generation of a batch from small functions, for vLLM-Omni pipelines with one `forward` for one prompt."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from vllm_omni.diffusion.data import DiffusionOutput
from vllm_omni.diffusion.worker.request_batch import DiffusionRequestBatch

from verl_omni.pipelines.engine_requests import decode_token_ids, request_generator
from verl_omni.pipelines.scheduler_config import received
from verl_omni.pipelines.trajectory_recorder import TrajectoryRecorder, version_of


class OwnForward:
    """`forward` for a batch of requests, mixed into a rollout pipeline before upstream's.

    Requests of one batch have the same size, steps and guidance. The family defines the five functions below,
    `default_steps` and `device`.
    """

    supports_request_batch = True
    default_steps: int
    device: torch.device

    def encode(self, prompts: Sequence[Mapping[str, Any]], params: Any, height: int, width: int) -> dict[str, Tensor]:
        """Inputs of the velocity besides latents and time, [B, ...] each, by the names in the family's `CONDITIONS`.

        Args:
            prompts: `prompt` and `negative_prompt` of each request.
            params: the engine's sampling parameters, of the first request.
        """
        raise NotImplementedError

    def initial_latents(self, generators: list[torch.Generator], height: int, width: int) -> Tensor:
        """Noise of each request, as the transformer gets latents."""
        raise NotImplementedError

    def noise_levels(self, steps: int, latents: Tensor) -> tuple[Tensor, Tensor]:
        """Timesteps [S] and noise levels [S + 1], float32."""
        raise NotImplementedError

    def velocity(self, x: Tensor, timestep: Tensor, conditions: Mapping[str, Tensor], guidance: float) -> Tensor:
        """Predicted velocity in the shape of `x`, at one timestep, rounded to the model's dtype."""
        raise NotImplementedError

    def decode(self, latents: Tensor, height: int, width: int) -> Tensor:
        """Pixels [B, 3, H, W] in [-1, 1] of final latents."""
        raise NotImplementedError

    def forward(self: Any, req: DiffusionRequestBatch) -> list[DiffusionOutput]:
        """Generate a sample of each request."""
        params = req.sampling_params_list[0]
        dtype = self.od_config.dtype
        default = self.default_sample_size * self.vae_scale_factor
        height = params.height or default
        width = params.width or default
        steps = int(params.num_inference_steps or self.default_steps)
        recorder = TrajectoryRecorder(
            req.sampling_params_list, self.device, steps=self.default_steps, dtype=dtype, version=version_of(self)
        )
        prompts = [_texts(decode_token_ids(request.prompt, self.tokenizer)) for request in req.requests]
        conditions = self.encode(prompts, params, height, width)
        generators = [request_generator(request_params, self.device) for request_params in req.sampling_params_list]
        latents = self.initial_latents(generators, height, width)
        timesteps, sigmas = self.noise_levels(steps, latents)
        guidance = float(params.guidance_scale or 1.0)
        final = recorder.denoise(
            lambda x, t: self.velocity(x.to(dtype), t.expand(len(x)).to(dtype), conditions, guidance),
            latents,
            timesteps,
            sigmas,
            conditions,
            received(timesteps, dtype),
        )
        decoded = final if params.output_type == "latent" else self.decode(final, height, width)
        outputs = [DiffusionOutput(output=row[None]) for row in decoded]
        if not req.is_dummy_run():
            recorder.attach(outputs, "image")
        return outputs


def _texts(prompt: Any) -> dict[str, str]:
    if isinstance(prompt, str):
        return {"prompt": prompt, "negative_prompt": ""}
    return {name: prompt.get(name) or "" for name in ("prompt", "negative_prompt")}
