"""Trajectory recorder: denoise a batch of engine requests and attach what training needs to their outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from verl_omni.pipelines.engine_requests import RequestedFields, own_generator, requested_fields, sde_window
from verl_omni.pipelines.sde_sampler import Trajectory, denoise


@dataclass(frozen=True, slots=True)
class RecordedSample:
    """What is known of one request besides its pixels.

    Attributes:
        final: the last latents [1, ...].
        sigma_max: the schedule's second noise level.
        conditions: what its velocities were computed from, [1, ...] each, under the names of the family's `CONDITIONS`.
        trajectory: of its window, None where it has none.
        version: of the weights, None where the trainer gave none.
    """

    final: Tensor
    sigma_max: float
    conditions: Mapping[str, Tensor]
    trajectory: Trajectory | None
    version: int | None


class TrajectoryRecorder:
    """One batch of requests: the window and the generator of each, what was recorded of them, and what is fields.

    A pipeline makes one at the beginning of `forward`, runs `denoise` in place of its own loop, and calls `attach`
    on what it returns.

    Args:
        params: the engine's sampling parameters, one for each request; a request without a generator gets one here.
        steps: the pipeline's own number of steps, for requests that name none.
        version: of the pipeline's weights, as `version_of` finds it.
    """

    def __init__(self, params: Sequence[Any], device: torch.device, *, steps: int, version: int | None = None) -> None:
        self._version = version
        self._generators = [own_generator(each, device) for each in params]
        # The generator's own seed: a request that brought none must have a window of its own too.
        self._windows = [
            sde_window(each.extra_args or {}, int(each.num_inference_steps or steps), generator.initial_seed())
            for each, generator in zip(params, self._generators, strict=True)
        ]
        self._fields = [requested_fields(each.extra_args or {}) for each in params]
        self._records: list[RecordedSample] = []

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
            velocity, latents, timesteps, sigmas: as `sde_sampler.denoise` takes them.
            conditions: what the velocities were computed from, under the names of the family's `CONDITIONS`; a tensor
                for each row, or one tensor [B, ...]. None where guidance is off.

        Returns:
            Final latents, of the shape and dtype of `latents`.
        """
        final, trajectories = denoise(velocity, latents, timesteps, sigmas, self._windows, self._generators)
        self._records = [
            RecordedSample(
                final[row : row + 1], float(sigmas[1]),
                {name: rows[row][None] for name, rows in conditions.items() if rows is not None}, trajectory,
                self._version,
            )
            for row, trajectory in enumerate(trajectories)
        ]  # fmt: skip
        return final.to(latents.dtype)

    def attach(self, outputs: Sequence[Any], media: str) -> None:
        """Put what was asked for of each row beside its pixels.

        Args:
            outputs: the engine's `DiffusionOutput`, one for each row.
            media: `image` or `video`, the engine's word for what `output` holds.
        """
        for output, fields, record in zip(outputs, self._fields, self._records, strict=True):
            attach(output, media, fields, record)


def attach(output: Any, media: str, fields: RequestedFields, record: RecordedSample) -> None:
    """Put what was asked for of one request, and what it was conditioned on, beside its pixels.

    Args:
        output: the engine's `DiffusionOutput`; one of which nothing was asked is left alone.
        media: `image` or `video`.
    """
    found: dict[str, Tensor] = {}
    if fields.steps and record.trajectory is not None:
        output.trajectory_latents = record.trajectory.latents[None].cpu()
        output.trajectory_timesteps = record.trajectory.timesteps[None].cpu()
        output.trajectory_log_probs = record.trajectory.log_probs[None].cpu()
        found = {"all_sigmas": record.trajectory.sigmas[None].cpu(), "sigma_max": torch.tensor([[record.sigma_max]])}
    if fields.clean_latents:
        found["clean_latents"] = _kept(record.final)
    # Without these, what it was conditioned on is of no use to anybody.
    embeddings = {name: _kept(value) for name, value in record.conditions.items()} if found else {}
    if fields.version and record.version is not None:
        found["weights_version"] = torch.tensor([record.version])
    if found:
        output.output = {"payload": {media: output.output}, "metadata": {"rl": found, "prompt_embeddings": embeddings}}


def version_of(pipeline: Any) -> int | None:
    """Version of a pipeline's weights, which the engine's worker notes at each update; None before the first."""
    version: int | None = getattr(pipeline, "weights_version", None)
    return version


def _kept(value: Tensor) -> Tensor:
    """On the host, floating-point numbers as float32: what the trainer computes with."""
    found = value.detach().cpu()
    return found.float() if found.is_floating_point() else found
