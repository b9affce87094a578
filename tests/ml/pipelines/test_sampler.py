"""SDE sampler: a whole batch, and its rows one by one, a step at a time."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_omni.pipelines.sde_sampler import Sampler, Trajectory, Window, denoise

STEPS = 5
SIGMAS = torch.linspace(1, 0, STEPS + 1)
TIMESTEPS = 1000 * SIGMAS[:-1]


def velocity(x: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
    return torch.sin(3 * x) + timestep.reshape(-1, 1, 1, 1) / 1000


windows = st.none() | st.builds(
    Window, start=st.integers(0, 2), size=st.integers(1, 3), noise_level=st.sampled_from([0.3, 0.7])
)


@given(st.lists(windows, min_size=1, max_size=4))
@settings(deadline=None, max_examples=40)
def test_a_row_advanced_alone_equals_the_row_in_its_batch(rows: list[Window | None]) -> None:
    noise = torch.randn(len(rows), 2, 3, 3, generator=torch.Generator().manual_seed(0))

    def chances() -> list[torch.Generator]:
        return [torch.Generator().manual_seed(row) for row in range(len(rows))]

    whole, recorded = denoise(velocity, noise, TIMESTEPS, SIGMAS, rows, chances())
    for row, chance in enumerate(chances()):
        sampler, x = Sampler(TIMESTEPS, SIGMAS, [rows[row]], [chance]), noise[row : row + 1]
        for step, timestep in enumerate(TIMESTEPS):
            x = sampler.advance(step, x, velocity(x, timestep))
        torch.testing.assert_close(x[0], whole[row])
        same(sampler.trajectories()[0], recorded[row], rows[row])


def same(one: Trajectory | None, other: Trajectory | None, window: Window | None) -> None:
    assert (one is None) == (other is None) == (window is None)
    if one is not None and other is not None and window is not None:
        assert one.latents.shape[0] == window.size + 1
        for name in ("latents", "timesteps", "sigmas", "log_probs"):
            torch.testing.assert_close(getattr(one, name), getattr(other, name))
