"""Step execution of Qwen-Image: requests may join and leave the engine's batch between two steps."""

from __future__ import annotations

from typing import Any

from vllm_omni.diffusion.data import DiffusionOutput

from verl_omni.pipelines.engine_requests import request_generator
from verl_omni.pipelines.scheduler_config import received
from verl_omni.pipelines.stepwise import StepwiseSampling


class StepwiseQwenImage(StepwiseSampling):
    """vLLM-Omni's `SupportsStepExecution`, mixed into the rollout pipeline before upstream's."""

    def prepare_encode(self: Any, state: Any, **kwargs: Any) -> Any:
        """Encode the prompt, draw the initial noise and place the SDE window."""
        generator = request_generator(state.sampling, self.device)
        state = super().prepare_encode(state, **kwargs)  # type: ignore[misc]
        # The engine pads the embeddings of a batch in place, so they are recorded before.
        conditions = self.recorded_conditions(
            state.img_shapes,
            None,
            state.prompt_embeds,
            state.prompt_embeds_mask,
            state.negative_prompt_embeds,
            state.negative_prompt_embeds_mask,
        )
        self.start_sampling(
            state,
            generator,
            received(state.timesteps, self.od_config.dtype),
            state.scheduler.sigmas,
            {name: rows[0][None] for name, rows in conditions.items()},
        )
        return state

    def post_decode(self: Any, state: Any, **kwargs: Any) -> DiffusionOutput:
        """Output of a finished request, with its recorded fields."""
        state.latents = state.latents.to(self.od_config.dtype)
        output = super().post_decode(state, **kwargs)  # type: ignore[misc]
        self.attach_record(state, output)
        return output
