"""PURE: SDE sampler: denoises a batch whose rows have different SDE windows, and records the trajectories."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from verl_omni.algos import agreement, sde


@dataclass(frozen=True, slots=True)
class Window:
    """SDE window of a sample: its steps follow the SDE, the others the ODE.

    Attributes:
        steps: ascending.
        noise_level: scale of the noise (`a` in Flow-GRPO, arXiv:2505.05470); no noise at 0.
        kind: one of `declarations.SDE_TYPES`.
        contiguous: each step begins where the one before it ends, so a latent between two is recorded once.
    """

    steps: tuple[int, ...]
    noise_level: float
    kind: str = "sde"
    contiguous: bool = True

    def holds(self, step: int) -> bool:
        """Whether `step` follows the SDE."""
        return self.noise_level > 0 and step in self.steps


@dataclass(frozen=True, slots=True)
class Trajectory:
    """Recorded steps of one sample, on the sampler's device; float32, except for the latents.

    Attributes:
        latents: in the model's dtype: [size + 1, C, h, w], before the window and after each of its steps; of a window
            that is not contiguous [2 * size, C, h, w], before and after each of its steps.
        timesteps: [size], as passed to the model.
        sigmas: noise level of each recorded latent.
        log_probs: [size], mean over the elements of the latent (Flow-GRPO, arXiv:2505.05470).
        projections: [size, K + 1], `agreement.velocity_projections` of each step.
    """

    latents: Tensor
    timesteps: Tensor
    sigmas: Tensor
    log_probs: Tensor
    projections: Tensor


class Sampler:
    """Advances the latents of a batch step by step, and records the rows that have a window.

    Each row draws its noise from its own generator, and only inside its own window, so a sample depends on its seed
    and not on the batch it is generated in.

    Args:
        timesteps: [S], as the model gets them, in the units of the scheduler. sigmas: [S + 1], the last one 0.
        windows, generators: one per row; None follows the ODE and is not recorded.
        dtype: dtype of the model. Latents inside a window are rounded to it before their density is computed, so the
            log-probabilities belong to exactly the recorded latents.
    """

    def __init__(
        self,
        timesteps: Tensor,
        sigmas: Tensor,
        windows: Sequence[Window | None],
        generators: Sequence[torch.Generator],
        *,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self._dtype = dtype
        self._timesteps = timesteps
        self._sigmas = sigmas.to(device=timesteps.device, dtype=torch.float32)
        self._windows = windows
        self._generators = generators
        self._latents: list[list[Tensor]] = [[] for _ in windows]
        self._scores: list[list[Tensor]] = [[] for _ in windows]
        self._projections: list[list[Tensor]] = [[] for _ in windows]

    def advance(self, step: int, x: Tensor, v: Tensor) -> Tensor:
        """Latents after `step`, from latents `x` and velocity `v`, all float32 [B, ...]."""
        sigmas = self._sigmas
        moved = x + (sigmas[step + 1] - sigmas[step]) * v
        for (kind, noise_level), members in _rows_by_step_kind(self._windows, step).items():
            index = torch.tensor(members, device=x.device)
            rows_of = len(members)
            before = self._rounded(x[index])
            mean, std = sde.moments(
                kind,
                before,
                v[index],
                sigma=sigmas[step].expand(rows_of),
                sigma_next=sigmas[step + 1].expand(rows_of),
                sigma_max=sigmas[1].expand(rows_of),
                noise_level=noise_level,
            )
            noise = torch.stack([_noise(x[row], self._generators[row]) for row in members])
            drawn = self._rounded(mean + std * noise)
            score = sde.log_prob(kind, drawn, mean, std)
            projections = agreement.velocity_projections(v[index])
            moved[index] = drawn
            for position, row in enumerate(members):
                window = self._windows[row]
                if not self._latents[row] or (window is not None and not window.contiguous):
                    self._latents[row].append(before[position].to(self._dtype))
                self._latents[row].append(drawn[position].to(self._dtype))
                self._scores[row].append(score[position])
                self._projections[row].append(projections[position])
        return moved

    def _rounded(self, x: Tensor) -> Tensor:
        """float32 values that the model's dtype can represent."""
        return x.to(self._dtype).float()

    def trajectories(self) -> list[Trajectory | None]:
        """Trajectory of each row; None for a row without a window."""
        return [
            _trajectory(
                window, self._latents[row], self._scores[row], self._projections[row], self._timesteps, self._sigmas
            )
            if window is not None
            else None
            for row, window in enumerate(self._windows)
        ]


def denoise(
    velocity: Callable[[Tensor, Tensor], Tensor],
    latents: Tensor,
    timesteps: Tensor,
    sigmas: Tensor,
    windows: Sequence[Window | None],
    generators: Sequence[torch.Generator],
    *,
    dtype: torch.dtype = torch.float32,
    received: Tensor | None = None,
) -> tuple[Tensor, list[Trajectory | None]]:
    """Denoise a batch with a `Sampler`.

    Args:
        velocity: (latents [B, ...], timestep scalar tensor) -> velocity [B, ...].
        latents: [B, ...], the initial noise.
        timesteps: [S], that `velocity` is called with. sigmas, windows, generators, dtype: as `Sampler` takes them.
        received: the timesteps that the model gets after rounding, [S]; None: `timesteps`.

    Returns:
        Final latents, float32 [B, ...], and a trajectory for each row that has a window.
    """
    x = latents.float()
    recorded = timesteps if received is None else received
    sampler = Sampler(recorded.to(x.device), sigmas, windows, generators, dtype=dtype)
    for step, timestep in enumerate(timesteps):
        x = sampler.advance(step, x, velocity(x, timestep).float())
    return x, sampler.trajectories()


def _rows_by_step_kind(windows: Sequence[Window | None], step: int) -> dict[tuple[str, float], list[int]]:
    """Rows whose window holds `step`, grouped by SDE type and noise level."""
    together: dict[tuple[str, float], list[int]] = {}
    for row, window in enumerate(windows):
        if window is not None and window.holds(step):
            together.setdefault((window.kind, window.noise_level), []).append(row)
    return together


def _noise(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=generator, device=generator.device).to(like.device)


def _trajectory(
    window: Window,
    latents: list[Tensor],
    log_probs: list[Tensor],
    projections: list[Tensor],
    timesteps: Tensor,
    sigmas: Tensor,
) -> Trajectory | None:
    if not latents:
        return None
    begins = list(window.steps[: len(log_probs)])
    levels = (
        [*begins, begins[-1] + 1] if window.contiguous else [level for step in begins for level in (step, step + 1)]
    )
    return Trajectory(
        latents=torch.stack(latents),
        timesteps=timesteps[begins].float(),
        sigmas=sigmas[levels],
        log_probs=torch.stack(log_probs),
        projections=torch.stack(projections),
    )
