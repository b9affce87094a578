"""`bypass_mode` where engine and trainer round differently: the clip range excludes both signs of the advantage alike.

Latents of Stable Diffusion 3 at 512 pixels, and the difference of velocities measured for its medium model in bfloat16
(docs/figures/real_size.json).
"""

from typing import Any

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from torch import Tensor

from verl_omni.algos import agreement, sde
from verl_omni.algos.sde_settings import SDE_TYPES
from verl_omni.workers.algorithms.flow_grpo import FlowGRPOLossConfig, GRPOObjective

ROWS = 16
STEPS = 9
SHAPE = (16, 64, 64)
ROUNDING = 0.024
ADVANTAGES = torch.tensor([1.0, -1.0]).repeat(ROWS // 2)


class RoundedPolicy:
    """The engine's velocities with a rounding error, by timestep."""

    def __init__(self, velocities: dict[float, Tensor]) -> None:
        self.velocities = velocities

    def velocity(self, part: dict[str, Tensor], x: Tensor, timestep: Tensor, guidance_scale: float) -> Tensor:
        return self.velocities[timestep[0].item()]


def recorded(kind: str, seed: int) -> tuple[RoundedPolicy, dict[str, Tensor]]:
    """Steps that the engine recorded one by one, and a policy with the same weights."""
    scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
    scheduler.set_timesteps(STEPS + 1)
    generator = torch.Generator().manual_seed(seed)
    latents = []
    log_probs = []
    projections = []
    velocities = {}
    for step in range(STEPS):
        x, noise, error = (torch.randn(ROWS, *SHAPE, generator=generator) for _ in range(3))
        velocity = 1.2 * torch.randn(ROWS, *SHAPE, generator=generator)
        levels = {
            name: scheduler.sigmas[place].expand(ROWS)
            for name, place in (("sigma", step), ("sigma_next", step + 1), ("sigma_max", 1))
        }
        mean, std = sde.moments(kind, x, velocity, noise_level=0.7, **levels)
        x_next = mean + std * noise
        latents += [x, x_next]
        log_probs.append(sde.log_prob(kind, x_next, mean, std))
        projections.append(agreement.velocity_projections(velocity))
        velocities[scheduler.timesteps[step].item()] = velocity + ROUNDING * velocity.std() * error
    sigmas = torch.stack([scheduler.sigmas[place] for step in range(STEPS) for place in (step, step + 1)])
    return RoundedPolicy(velocities), {
        "all_latents": torch.stack(latents, 1),
        "all_timesteps": scheduler.timesteps[:STEPS].expand(ROWS, STEPS),
        "all_sigmas": sigmas.expand(ROWS, 2 * STEPS),
        "sigma_max": scheduler.sigmas[1].expand(ROWS, 1),
        "rollout_log_probs": torch.stack(log_probs, 1),
        "velocity_projections": torch.stack(projections, 1),
        "advantages": ADVANTAGES,
    }


def excluded(kind: str, seed: int, **arguments: Any) -> tuple[float, float]:
    """Shares of the terms with a positive and with a negative advantage that the clip range excludes."""
    policy, batch = recorded(kind, seed)
    objective = GRPOObjective(
        policy,
        FlowGRPOLossConfig(),
        kl_loss_coef=None,
        noise_level=0.7,
        sde_type=kind,  # type: ignore[arg-type]
        bypass_mode=True,
        **arguments,
    )
    terms = [objective.term(batch, step)[1] for step in range(STEPS)]
    metrics = objective.summarize({name: torch.cat([term[name] for term in terms]) for name in terms[0]}, ROWS * STEPS)
    return metrics["actor/excluded_at_start_positive"], metrics["actor/excluded_at_start_negative"]


@pytest.mark.parametrize("kind", ["sde", "dance_sde"])
def test_rounding_excludes_neither_sign_of_the_advantage_more_than_the_other(kind: str) -> None:
    positive, negative = excluded(kind, 1)  # velocities are not compared, so nothing is known of rounding
    assert positive < 0.02 and negative > 0.2
    rounding = agreement.RoundingErrors()
    shares = excluded(kind, 1, velocity_tolerance=0.05, rounding=rounding)
    assert abs(shares[0] - shares[1]) < 0.12 and max(shares) < 0.15, "with the weights of the engine"
    older = excluded(kind, 2, velocity_tolerance=float("inf"), rounding=rounding, same_weights=False)
    assert abs(older[0] - older[1]) < 0.12 and max(older) < 0.15, "what was measured then holds for older samples"
    unknown = excluded(kind, 2, velocity_tolerance=float("inf"), same_weights=False)
    assert unknown[1] > 0.2


def test_timesteps_that_were_not_measured_have_the_mean_of_the_others() -> None:
    rounding = agreement.RoundingErrors()
    assert rounding.at(torch.tensor([1.0, 2.0])).tolist() == [0, 0]
    rounding.measure(torch.tensor([1.0, 2.0, 1.0]), torch.tensor([0.25, 0.5, 0.75]))
    assert rounding.at(torch.tensor([2.0, 1.0, 3.0])).tolist() == [0.5, 0.5, 0.5]
    rounding.measure(torch.tensor([1.0]), torch.tensor([1.0]))
    assert rounding.at(torch.tensor([2.0, 1.0, 3.0])).tolist() == [0.5, 1, 0.75]


@pytest.mark.parametrize("kind", SDE_TYPES)
def test_the_expected_change_of_the_log_probability_is_the_measured_mean(kind: str) -> None:
    generator = torch.Generator().manual_seed(3)
    x, v, noise, error = (torch.randn(400, 4096, generator=generator) for _ in range(4))
    sigmas = {"sigma": 0.7, "sigma_next": 0.5, "sigma_max": 0.9}
    levels = {name: torch.full((400,), value) for name, value in sigmas.items()}
    mean, std = sde.moments(kind, x, v, noise_level=0.7, **levels)
    other_mean, _ = sde.moments(kind, x, v + 0.2 * error, noise_level=0.7, **levels)
    x_next = mean + std * noise
    change = sde.log_prob(kind, x_next, other_mean, std) - sde.log_prob(kind, x_next, mean, std)
    expected = sde.velocity_error_effect(kind, torch.full((400,), 0.04), noise_level=0.7, **levels)
    assert expected.max() < 0 and change.mean().item() == pytest.approx(expected.mean().item(), rel=0.03)
