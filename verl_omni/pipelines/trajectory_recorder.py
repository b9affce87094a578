"""Trajectory recorder: denoise a batch of engine requests and attach what training needs to their outputs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from verl_omni.pipelines.engine_requests import (
    RequestedFields,
    request_generator,
    requested_fields,
    sde_window,
    start_step_noise,
    step_noise_seed,
)
from verl_omni.pipelines.registry import NEGATIVE
from verl_omni.pipelines.sde_sampler import Trajectory, denoise


@dataclass(frozen=True, slots=True)
class RecordedSample:
    """Recorded data of one request, without its pixels.

    Attributes:
        final: final latents, [1, ...], in the model's dtype.
        schedule: noise levels before each step and after the last, [S + 1].
        conditions: inputs of the velocity besides latents and time, [1, ...] each, as the model gets them, by the names
            in the family's `CONDITIONS`.
        trajectory: recorded steps; None without an SDE window.
        version: version of the weights; None before the first update.
    """

    final: Tensor
    schedule: Tensor
    conditions: Mapping[str, Tensor]
    trajectory: Trajectory | None
    version: int | None


class TrajectoryRecorder:
    """Denoises one batch of requests and attaches the fields that each request asks for to its output.

    A pipeline creates one at the beginning of `forward`, calls `denoise` instead of a denoising loop, and `attach` with
    its outputs.

    Args:
        params: the engine's sampling parameters, one per request; a request without a generator gets one here.
        steps: number of denoising steps of requests that do not set it.
        dtype: dtype of the model and of recorded latents.
        version: version of the weights, from `version_of`.
    """

    def __init__(
        self, params: Sequence[Any], device: torch.device, *, steps: int, dtype: torch.dtype, version: int | None = None
    ) -> None:
        self._version = version
        self._dtype = dtype
        self._generators = [request_generator(request, device) for request in params]
        self._extra = [request.extra_args or {} for request in params]
        self._windows = [
            sde_window(extra, int(request.num_inference_steps or steps), step_noise_seed(extra, generator))
            for request, extra, generator in zip(params, self._extra, self._generators, strict=True)
        ]
        self._fields = [requested_fields(extra) for extra in self._extra]
        self._records: list[RecordedSample] = []

    def denoise(
        self,
        velocity: Callable[[Tensor, Tensor], Tensor],
        latents: Tensor,
        timesteps: Tensor,
        sigmas: Tensor,
        conditions: Mapping[str, Sequence[Tensor] | Tensor | None],
        received: Tensor | None = None,
    ) -> Tensor:
        """Denoise the batch.

        Args:
            velocity, latents, timesteps, sigmas, received: as in `sde_sampler.denoise`.
            conditions: inputs of the velocity besides latents and time, by the names in the family's `CONDITIONS`: a
                tensor per row, or one tensor [B, ...]; None for the guidance inputs when guidance is off.

        Returns:
            Final latents, in the shape and dtype of `latents`.
        """
        for extra, generator in zip(self._extra, self._generators, strict=True):
            start_step_noise(extra, generator)
        final, trajectories = denoise(
            velocity, latents, timesteps, sigmas, self._windows, self._generators, dtype=self._dtype, received=received
        )
        self._records = [
            RecordedSample(
                final[row : row + 1].to(self._dtype),
                sigmas,
                {name: rows[row][None] for name, rows in conditions.items() if rows is not None},
                trajectory,
                self._version,
            )
            for row, trajectory in enumerate(trajectories)
        ]
        return final.to(latents.dtype)

    def attach(self, outputs: Sequence[Any], media: str) -> None:
        """Attach the requested fields of each row to its output.

        Args:
            outputs: the engine's `DiffusionOutput`, one per row.
            media: `image` or `video`: the engine's key for the pixels.
        """
        for output, fields, record in zip(outputs, self._fields, self._records, strict=True):
            attach(output, media, fields, record)


def attach(output: Any, media: str, fields: RequestedFields, record: RecordedSample) -> None:
    """Attach the requested fields of one request, and its conditions, to its output.

    Args:
        output: the engine's `DiffusionOutput`; left unchanged if no field is requested.
        media: `image` or `video`.
    """
    recorded: dict[str, Tensor] = {}
    if fields.steps and record.trajectory is not None:
        output.trajectory_latents = record.trajectory.latents[None].cpu()
        output.trajectory_timesteps = record.trajectory.timesteps[None].cpu()
        output.trajectory_log_probs = record.trajectory.log_probs[None].cpu()
        recorded = {
            "all_sigmas": record.trajectory.sigmas[None].cpu(),
            "sigma_max": _kept(record.schedule[None, 1:2].float()),  # see `algos.sde.moments`
            "velocity_projections": record.trajectory.projections[None].cpu(),
        }
    if fields.clean_latents:
        recorded |= {"clean_latents": _kept(record.final), "sampler_levels": _kept(record.schedule[None, :-1].float())}
    # The trainer needs the conditions only together with recorded steps or final latents, and trains without guidance
    # on final latents.
    embeddings = {
        name: _kept(value)
        for name, value in record.conditions.items()
        if recorded and (fields.steps or not name.startswith(NEGATIVE))
    }
    if fields.version and record.version is not None:
        recorded["weights_version"] = torch.tensor([record.version])
    if recorded:
        output.output = {
            "payload": {media: output.output},
            "metadata": {"rl": recorded, "prompt_embeddings": embeddings},
        }


def version_of(pipeline: Any) -> int | None:
    """Version of the pipeline's weights, which the engine's worker sets at each update; None before the first."""
    version: int | None = getattr(pipeline, "weights_version", None)
    return version


def _kept(value: Tensor) -> Tensor:
    """A copy in CPU memory. A view of a batch would be pickled with the whole batch."""
    return value.detach().to("cpu", copy=True)
