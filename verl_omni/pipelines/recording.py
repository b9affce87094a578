"""PURE: denoise a batch whose rows have windows of their own, and record what training needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from verl_omni.algos import sde


@dataclass(frozen=True, slots=True)
class Window:
    """The steps [start, start + size) of one sample that are drawn from the SDE; the others follow the ODE."""

    start: int
    size: int
    noise_level: float
    kind: str = "sde"

    def holds(self, step: int) -> bool:
        """Whether `step` is drawn from the SDE."""
        return self.noise_level > 0 and self.start <= step < self.start + self.size


@dataclass(frozen=True, slots=True)
class Trajectory:
    """What was recorded of one sample, float32, on the sampler's device.

    Attributes:
        latents: [size + 1, C, h, w], before the window and after each of its steps.
        timesteps: [size], as the model was given them.
        sigmas: [size + 1], noise level of each recorded latent.
        log_probs: [size], mean over the latent's elements (Flow-GRPO, arXiv:2505.05470).
    """

    latents: Tensor
    timesteps: Tensor
    sigmas: Tensor
    log_probs: Tensor


def denoise(
    velocity: Callable[[Tensor, Tensor], Tensor],
    latents: Tensor,
    timesteps: Tensor,
    sigmas: Tensor,
    windows: Sequence[Window | None],
    generators: Sequence[torch.Generator],
) -> tuple[Tensor, list[Trajectory | None]]:
    """Run all steps for a batch; rows with a window are recorded.

    Each row draws its noise from its own generator, and only inside its own window, so that a sample
    depends on its seed and not on the batch it was made in.

    Args:
        velocity: (latents [B, ...], timestep scalar tensor) -> velocity [B, ...].
        latents: [B, C, h, w], the noise that sampling starts from.
        timesteps: [S]. sigmas: [S + 1], the last one 0.
        windows, generators: one for each row.

    Returns:
        Final latents [B, C, h, w] float32, and a trajectory for each row that has a window.
    """
    x = latents.float()
    sigmas = sigmas.to(device=x.device, dtype=torch.float32)
    rows: list[list[Tensor]] = [[] for _ in windows]
    scores: list[list[Tensor]] = [[] for _ in windows]
    for step, timestep in enumerate(timesteps):
        v = velocity(x, timestep).float()
        moved = x + (sigmas[step + 1] - sigmas[step]) * v
        for (kind, noise_level), members in _drawn_together(windows, step).items():
            index = torch.tensor(members, device=x.device)
            rows_of = len(members)
            mean, std = sde.moments(
                kind, x[index], v[index],
                sigma=sigmas[step].expand(rows_of), sigma_next=sigmas[step + 1].expand(rows_of),
                sigma_max=sigmas[1].expand(rows_of), noise_level=noise_level,
            )  # fmt: skip
            drawn = mean + std * torch.stack([_noise(x[row], generators[row]) for row in members])
            score = sde.log_prob(kind, drawn, mean, std)
            moved[index] = drawn
            for place, row in enumerate(members):
                if not rows[row]:
                    rows[row].append(x[row])
                rows[row].append(drawn[place])
                scores[row].append(score[place])
        x = moved
    return x, [
        _trajectory(window, rows[row], scores[row], timesteps, sigmas) if window is not None else None
        for row, window in enumerate(windows)
    ]


def _drawn_together(windows: Sequence[Window | None], step: int) -> dict[tuple[str, float], list[int]]:
    """Rows whose window holds `step`, by what their step shares."""
    together: dict[tuple[str, float], list[int]] = {}
    for row, window in enumerate(windows):
        if window is not None and window.holds(step):
            together.setdefault((window.kind, window.noise_level), []).append(row)
    return together


def _noise(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=generator, device=generator.device).to(like.device)


def _trajectory(
    window: Window, latents: list[Tensor], log_probs: list[Tensor], timesteps: Tensor, sigmas: Tensor
) -> Trajectory | None:
    if not latents:
        return None
    stop = window.start + len(log_probs)
    return Trajectory(
        latents=torch.stack(latents),
        timesteps=timesteps[window.start : stop].float(),
        sigmas=sigmas[window.start : stop + 1],
        log_probs=torch.stack(log_probs),
    )
