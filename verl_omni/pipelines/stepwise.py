"""Sampling of requests that the engine advances one step at a time, with their recorded steps."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from verl_omni.pipelines.engine_requests import requested_fields, sde_window, start_step_noise, step_noise_seed
from verl_omni.pipelines.sde_sampler import Sampler
from verl_omni.pipelines.trajectory_recorder import RecordedSample, attach, version_of


class StepwiseSampling:
    """Half of vLLM-Omni's `SupportsStepExecution`, mixed into a rollout pipeline.

    The family prepares a request, calls `start_sampling`, and decodes; `state.extra` holds the data of the request:
    `sampler`, `conditions` ([1, ...] each, by the names in the family's `CONDITIONS`), `schedule`.
    """

    supports_step_execution = True

    def start_sampling(
        self: Any,
        state: Any,
        generator: torch.Generator,
        timesteps: Tensor,
        sigmas: Tensor,
        conditions: Mapping[str, Tensor],
    ) -> None:
        """Place the SDE window of a request, whose initial noise has been drawn.

        Args:
            timesteps: [S], as the model gets them after rounding. sigmas: [S + 1].
        """
        extra = state.sampling.extra_args or {}
        window = sde_window(extra, len(timesteps), step_noise_seed(extra, generator))
        start_step_noise(extra, generator)
        dtype = self.od_config.dtype
        state.latents = state.latents.float()
        state.extra = {
            "sampler": Sampler(timesteps.to(state.latents.device), sigmas, [window], [generator], dtype=dtype),
            "conditions": conditions,
            "schedule": sigmas,
        }

    def step_scheduler(self, state: Any, noise_pred: Tensor, **kwargs: Any) -> None:
        """Advance one request to its next step."""
        state.latents = state.extra["sampler"].advance(state.step_index, state.latents, noise_pred.float())
        state.step_index += 1

    def attach_record(self: Any, state: Any, output: Any) -> None:
        """Attach the fields that a finished request asks for to its output.

        All steps are of one version of the weights: the worker refuses updates while a request is running.
        """
        record = RecordedSample(
            state.latents.to(self.od_config.dtype),
            state.extra["schedule"],
            state.extra["conditions"],
            state.extra["sampler"].trajectories()[0],
            version_of(self),
        )
        attach(output, "image", requested_fields(state.sampling.extra_args or {}), record)
