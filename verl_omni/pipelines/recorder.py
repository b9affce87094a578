"""What the rollout pipelines of all families share: a batch of requests, denoised and recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from verl_omni.pipelines.recording import Trajectory, denoise
from verl_omni.pipelines.rollout_settings import wanted_of, window_of


class Recorder:
    """One batch of requests: the window and the generator of each, what was recorded of them, and what is wanted.

    A pipeline makes one at the beginning of `forward`, runs `denoise` in place of its own loop, and calls `attach`
    on what it returns.

    Args:
        params: the engine's sampling parameters, one for each request; a request without a generator gets one here.
        steps: the pipeline's own number of steps, for requests that name none.
    """

    def __init__(self, params: Sequence[Any], device: torch.device, *, steps: int) -> None:
        self._generators = [_generator(each, device) for each in params]
        # The generator's own seed: a request that brought none must have a window of its own too.
        self._windows = [
            window_of(each.extra_args or {}, int(each.num_inference_steps or steps), generator.initial_seed())
            for each, generator in zip(params, self._generators, strict=True)
        ]
        self._wanted = [wanted_of(each.extra_args or {}) for each in params]
        self._trajectories: list[Trajectory | None] = [None] * len(params)
        self._sigma_max = 1.0
        self._final = torch.empty(0)
        self._conditions: dict[str, list[Tensor]] = {}

    def denoise(
        self,
        velocity: Callable[[Tensor, Tensor], Tensor],
        latents: Tensor,
        timesteps: Tensor,
        sigmas: Tensor,
        conditions: Mapping[str, Sequence[Tensor] | Tensor | None],
    ) -> Tensor:
        """Run all steps.

        Args:
            velocity, latents, timesteps, sigmas: as `recording.denoise` takes them.
            conditions: what the velocities were computed from, under the names of the family's `CONDITIONS`; a tensor
                for each row, or one tensor [B, ...]. None where guidance is off.

        Returns:
            Final latents, of the shape and dtype of `latents`.
        """
        final, self._trajectories = denoise(velocity, latents, timesteps, sigmas, self._windows, self._generators)
        self._sigma_max, self._final = float(sigmas[1]), final
        self._conditions = {name: list(rows) for name, rows in conditions.items() if rows is not None}
        return final.to(latents.dtype)

    def attach(self, outputs: Sequence[Any], media: str) -> None:
        """Put what was asked for of each row, and what it was conditioned on, beside its pixels.

        Args:
            outputs: the engine's `DiffusionOutput`, one for each row. Those of which nothing was asked are left alone.
            media: `image` or `video`, the engine's word for what `output` holds.
        """
        for row, output in enumerate(outputs):
            wanted, trajectory, found = self._wanted[row], self._trajectories[row], {}
            if wanted.steps and trajectory is not None:
                output.trajectory_latents = trajectory.latents[None].cpu()
                output.trajectory_timesteps = trajectory.timesteps[None].cpu()
                output.trajectory_log_probs = trajectory.log_probs[None].cpu()
                found = {"all_sigmas": trajectory.sigmas[None].cpu(), "sigma_max": torch.tensor([[self._sigma_max]])}
            if wanted.clean_latents:
                found["clean_latents"] = _kept(self._final[row])[None]
            if found:
                embeddings = {name: _kept(rows[row])[None] for name, rows in self._conditions.items()}
                metadata = {"rl": found, "prompt_embeddings": embeddings}
                output.output = {"payload": {media: output.output}, "metadata": metadata}


def get_post_process_func(od_config: Any) -> Callable[..., Any]:
    """Pixels as uint8 instead of PIL images; latents pass through. Runs beside the engine.

    The function takes a tensor (the engine's warm-up) or what `Recorder.attach` made, whose only payload may be an
    image [1, 3, H, W] or a video [1, 3, T, H, W], which becomes [1, T, 3, H, W].
    """

    def post_process(output: Any, sampling_params: Any = None) -> Any:
        if getattr(sampling_params, "output_type", None) == "latent":
            return output
        if isinstance(output, Tensor):
            return to_uint8(output)
        return {**output, "payload": {media: to_uint8(pixels) for media, pixels in output["payload"].items()}}

    return post_process


def to_uint8(pixels: Tensor) -> Tensor:
    """A VAE's output in [-1, 1] as uint8: [..., 3, H, W] of the same shape, videos [B, 3, T, H, W] frame by frame."""
    frames_first = pixels.transpose(1, 2) if pixels.ndim == 5 else pixels
    return (frames_first.float() / 2 + 0.5).clamp(0, 1).mul(255).round().to(torch.uint8)


def with_text(prompt: Any, tokenizer: Any) -> Any:
    """A prompt of token ids with their text, for a pipeline that tokenizes texts itself; the input is not changed."""
    if isinstance(prompt, str) or prompt.get("prompt"):
        return prompt
    made = dict(prompt)
    for ids, text in (("prompt_token_ids", "prompt"), ("negative_prompt_ids", "negative_prompt")):
        if prompt.get(ids) is not None:
            made[text] = tokenizer.decode(list(prompt[ids]), skip_special_tokens=True)
    return made


def _kept(condition: Tensor) -> Tensor:
    """On the host, floating-point numbers as float32: what the trainer computes with."""
    found = condition.detach().cpu()
    return found.float() if found.is_floating_point() else found


def _generator(params: Any, device: torch.device) -> torch.Generator:
    """The engine makes a generator where a seed was given; a request without one gets its own chance."""
    if not isinstance(params.generator, torch.Generator):
        params.generator = torch.Generator(device=device)
        params.generator.seed()
    found: torch.Generator = params.generator
    return found
