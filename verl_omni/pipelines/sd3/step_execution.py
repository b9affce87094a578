"""Step execution of Stable Diffusion 3: requests may join and leave the engine's batch between two steps."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from vllm_omni.diffusion.data import DiffusionOutput

from verl_omni.pipelines.engine_requests import decode_token_ids, request_generator
from verl_omni.pipelines.stepwise import StepwiseSampling

# upstream's defaults in `forward`
STEPS = 28
SEQUENCE_LENGTH = 256
EMBEDDINGS = ("prompt_embeds", "pooled_prompt_embeds", "negative_prompt_embeds", "negative_pooled_prompt_embeds")


class StepwiseSD3(StepwiseSampling):
    """vLLM-Omni's `SupportsStepExecution`, mixed into the rollout pipeline."""

    def prepare_latents(self: Any, *shape: Any) -> Tensor:
        """Upstream's, and the number of their tokens for `prepare_timesteps`."""
        latents: Tensor = super().prepare_latents(*shape)  # type: ignore[misc]
        rows, columns = latents.shape[-2:]
        self._tokens = (rows // self.patch_size) * (columns // self.patch_size)
        return latents

    def prepare_timesteps(self: Any, num_inference_steps: int, sigmas: Any, image_seq_len: int) -> tuple[Tensor, int]:
        """Upstream's, where a dynamic shift depends on the tokens, as in diffusers; upstream gives the channels."""
        prepared: tuple[Tensor, int] = super().prepare_timesteps(  # type: ignore[misc]
            num_inference_steps, sigmas, self._tokens
        )
        return prepared

    def prepare_encode(self: Any, state: Any, **kwargs: Any) -> Any:
        """Encode the prompt, draw the initial noise and place the SDE window."""
        params = state.sampling
        prompt = decode_token_ids(state.prompt, self.tokenizer)
        text, negative = (prompt, "") if isinstance(prompt, str) else _texts(prompt)
        height = params.height or self.default_sample_size * self.vae_scale_factor
        width = params.width or self.default_sample_size * self.vae_scale_factor
        length = params.max_sequence_length or SEQUENCE_LENGTH
        steps = int(params.num_inference_steps or STEPS)
        self.check_inputs([text], "", "", height, width, max_sequence_length=length)
        conditions = dict(zip(("prompt_embeds", "pooled_prompt_embeds"), self._encoded(text, length), strict=True))
        state.do_true_cfg = (params.guidance_scale or 0.0) > 1
        if state.do_true_cfg:
            names = ("negative_prompt_embeds", "negative_pooled_prompt_embeds")
            conditions |= dict(zip(names, self._encoded(negative, length), strict=True))
        generator = request_generator(params, self.device)
        latents = self.prepare_latents(1, self.transformer.in_channels, height, width, generator, params.latents)
        timesteps, _ = self.prepare_timesteps(steps, params.sigmas, latents.shape[1])
        state.latents = latents
        state.timesteps = timesteps
        # `_velocity` rounds the timesteps to the model's dtype.
        self.start_sampling(state, generator, timesteps.to(self.od_config.dtype), self.scheduler.sigmas, conditions)
        return state

    def _encoded(self: Any, text: str, length: int) -> tuple[Tensor, Tensor]:
        return self.encode_prompt(prompt=[text], prompt_2="", prompt_3="", max_sequence_length=length)

    def denoise_step(self: Any, input_batch: Any, *, states: Sequence[Any], **kwargs: Any) -> Tensor:
        """Velocity of each request at its own step, [B, C, h, w].

        Requests whose prompts have different lengths, such as those over HTTP next to training's, run one length after
        the other: the model has no mask of a padded prompt. So the engine, which would refuse such a batch, has no
        embeddings in its own fields of the state.
        """
        rows_of: dict[int, list[int]] = {}
        for row, state in enumerate(states):
            rows_of.setdefault(state.extra["conditions"]["prompt_embeds"].shape[1], []).append(row)
        by_row: dict[int, Tensor] = {}
        for rows in rows_of.values():
            members = [states[row] for row in rows]
            velocity = self._velocity(
                input_batch.latents[rows],
                input_batch.timesteps[rows],
                **{name: _stacked(members, name) for name in EMBEDDINGS},
                do_true_cfg=input_batch.do_true_cfg,
                guidance_scale=states[0].sampling.guidance_scale,  # `StepBatchSamplingParamsKey`: one in a batch
            )
            by_row |= dict(zip(rows, velocity, strict=True))
        return torch.stack([by_row[row] for row in range(len(states))])

    def post_decode(self: Any, state: Any, **kwargs: Any) -> DiffusionOutput:
        """Output of a finished request, with its recorded fields."""
        output = DiffusionOutput(output=self._decoded(state.latents, state.sampling.output_type))
        self.attach_record(state, output)
        return output

    def _decoded(self: Any, latents: Tensor, output_type: str | None) -> Tensor:
        if output_type == "latent":
            return latents.to(self.od_config.dtype)
        config = self.vae.config
        scaled = latents.to(self.od_config.dtype).to(self.vae.dtype) / config.scaling_factor + config.shift_factor
        return self.vae.decode(scaled, return_dict=False)[0]


def _texts(prompt: Mapping[str, Any]) -> tuple[str, str]:
    return prompt.get("prompt") or "", prompt.get("negative_prompt") or ""


def _stacked(states: Sequence[Any], name: str) -> Tensor | None:
    conditions = [state.extra["conditions"].get(name) for state in states]
    return None if any(condition is None for condition in conditions) else torch.cat(conditions)
