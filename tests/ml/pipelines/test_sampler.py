"""SDE sampler: a whole batch, and its rows one by one, a step at a time."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_omni.algos import sde
from verl_omni.pipelines.sde_sampler import Sampler, Trajectory, Window, denoise

STEPS = 5
SIGMAS = torch.linspace(1, 0, STEPS + 1)
TIMESTEPS = 1000 * SIGMAS[:-1]


def velocity(x: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
    return torch.sin(3 * x) + timestep.reshape(-1, 1, 1, 1) / 1000


noises = st.sampled_from([0.3, 0.7])
contiguous = st.builds(
    lambda start, size, noise: Window(tuple(range(start, start + size)), noise),
    st.integers(0, 2),
    st.integers(1, 3),
    noises,
)
scattered = st.builds(
    lambda steps, noise: Window(tuple(sorted(steps)), noise, contiguous=False),
    st.sets(st.integers(0, STEPS - 1), min_size=1),
    noises,
)
windows = st.none() | contiguous | scattered


@given(st.lists(windows, min_size=1, max_size=4))
@settings(deadline=None, max_examples=40)
def test_a_row_advanced_alone_equals_the_row_in_its_batch(rows: list[Window | None]) -> None:
    noise = torch.randn(len(rows), 2, 3, 3, generator=torch.Generator().manual_seed(0))

    def chances() -> list[torch.Generator]:
        return [torch.Generator().manual_seed(row) for row in range(len(rows))]

    in_batch, recorded = denoise(velocity, noise, TIMESTEPS, SIGMAS, rows, chances())
    for row, chance in enumerate(chances()):
        sampler = Sampler(TIMESTEPS, SIGMAS, [rows[row]], [chance])
        x = noise[row : row + 1]
        for step, timestep in enumerate(TIMESTEPS):
            x = sampler.advance(step, x, velocity(x, timestep))
        torch.testing.assert_close(x[0], in_batch[row])
        same(sampler.trajectories()[0], recorded[row], rows[row])


def same(one: Trajectory | None, other: Trajectory | None, window: Window | None) -> None:
    assert (one is None) == (other is None) == (window is None)
    if one is not None and other is not None and window is not None:
        size = len(window.steps)
        assert one.latents.shape[0] == len(one.sigmas) == (size + 1 if window.contiguous else 2 * size)
        for name in ("latents", "timesteps", "sigmas", "log_probs", "projections"):
            torch.testing.assert_close(getattr(one, name), getattr(other, name))


@given(st.sampled_from(["sde", "dance_sde"]), st.integers(0, 2), st.sampled_from([torch.bfloat16, torch.float16]))
@settings(deadline=None, max_examples=20)
def test_log_probabilities_are_those_of_the_recorded_latents(kind: str, start: int, dtype: torch.dtype) -> None:
    """Latents are recorded in the model's dtype; rounding them afterwards would shift ratios beyond the clip range."""
    window = Window((start, start + 1), 0.7, kind)
    noise = torch.randn(1, 2, 8, 8, generator=torch.Generator().manual_seed(start))
    chance = torch.Generator().manual_seed(1)
    _, (recorded,) = denoise(velocity, noise, TIMESTEPS, SIGMAS, [window], [chance], dtype=dtype)
    assert recorded is not None and recorded.latents.dtype == dtype
    for step in range(2):
        x, following = (recorded.latents[point][None].float() for point in (step, step + 1))
        mean, std = sde.moments(
            kind,
            x,
            _velocity_of(x, start, start + step, noise),
            sigma=recorded.sigmas[step : step + 1],
            sigma_next=recorded.sigmas[step + 1 : step + 2],
            sigma_max=SIGMAS[1:2],
            noise_level=0.7,
        )
        assert torch.equal(sde.log_prob(kind, following, mean, std)[0], recorded.log_probs[step])


@given(st.sets(st.integers(0, STEPS - 2), min_size=1), st.sampled_from(["sde", "dance_sde", "cps"]))
@settings(deadline=None, max_examples=30)
def test_scattered_steps_are_recorded_before_and_after_each(steps: set[int], kind: str) -> None:
    """The transition density of every recorded pair is the recorded one, and the ODE joins the pairs."""
    chosen = tuple(sorted(steps))
    noise = torch.randn(1, 2, 8, 8, generator=torch.Generator().manual_seed(len(chosen)))
    chance = torch.Generator().manual_seed(1)
    window = Window(chosen, 0.7, kind, contiguous=False)
    final, (recorded,) = denoise(velocity, noise, TIMESTEPS, SIGMAS, [window], [chance])
    assert recorded is not None and recorded.timesteps.tolist() == [TIMESTEPS[step].item() for step in chosen]
    x = noise
    begin = 0
    for place, step in enumerate(chosen):
        before, after = (recorded.latents[2 * place + later][None] for later in (0, 1))
        levels = {"sigma": recorded.sigmas[2 * place][None], "sigma_next": recorded.sigmas[2 * place + 1][None]}
        assert [level.item() for level in levels.values()] == SIGMAS[step : step + 2].tolist()
        torch.testing.assert_close(before, _by_the_ode(x, begin, step))
        mean, std = sde.moments(
            kind, before, velocity(before, TIMESTEPS[step]), sigma_max=SIGMAS[1:2], noise_level=0.7, **levels
        )
        torch.testing.assert_close(sde.log_prob(kind, after, mean, std)[0], recorded.log_probs[place])
        x = after
        begin = step + 1
    torch.testing.assert_close(final, _by_the_ode(x, begin, STEPS))


def _by_the_ode(x: torch.Tensor, begin: int, end: int) -> torch.Tensor:
    for step in range(begin, end):
        x = x + (SIGMAS[step + 1] - SIGMAS[step]) * velocity(x, TIMESTEPS[step])
    return x


def _velocity_of(x: torch.Tensor, start: int, step: int, noise: torch.Tensor) -> torch.Tensor:
    """The velocity that the sampler used: at the first step of a window, of latents that are not rounded yet."""
    if step > start:
        return velocity(x, TIMESTEPS[step])
    before = noise
    for earlier in range(start):
        before = before + (SIGMAS[earlier + 1] - SIGMAS[earlier]) * velocity(before, TIMESTEPS[earlier])
    return velocity(before, TIMESTEPS[step])
