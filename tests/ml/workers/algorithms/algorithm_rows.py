"""Rows of an update for each algorithm: steps of a sampler, or final latents. Files that run as ranks get them made."""

from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from omegaconf import OmegaConf
from torch import Tensor

from verl_omni.algos import agreement, sde
from verl_omni.pipelines.registry import training_adapter
from verl_omni.workers.actor import build
from verl_omni.workers.actor.precision import Precision
from verl_omni.workers.algorithms.base import training_algorithm

PROMPTS = 3
SAMPLES = 4
ROWS = PROMPTS * SAMPLES
LEVELS = torch.tensor([0.9, 0.6, 0.4, 0.2])
LATENTS = {"StableDiffusion3Pipeline": (16, 8, 8), "WanPipeline": (4, 3, 4, 4)}
EMBEDDINGS = {
    "StableDiffusion3Pipeline": {"prompt_embeds": (8, 64), "pooled_prompt_embeds": (64,)},
    "WanPipeline": {"prompt_embeds": (7, 32)},
}


@cache
def _prompts(architecture: str) -> dict[str, Tensor]:
    """Embeddings of each row; the rows of a prompt have the same ones."""
    generator = torch.Generator().manual_seed(5)
    return {
        name: torch.randn(PROMPTS, *shape, generator=generator).repeat_interleave(SAMPLES, 0)
        for name, shape in EMBEDDINGS[architecture].items()
    }


@cache
def _before_updates(folder: Path) -> Any:
    settings: Any = SimpleNamespace(
        path=str(folder), lora_rank=0, attn_backend="native", enable_gradient_checkpointing=False
    )
    return build.load_transformer(settings, precision=Precision(torch.float32, torch.float32), seed=0).eval()


@cache
@torch.no_grad()
def _recorded(folder: Path, architecture: str, kind: str, scattered: bool) -> dict[str, Tensor]:
    """Steps of a sampler, with log-probabilities and velocities that differ a little from the trainer's."""
    generator = torch.Generator().manual_seed(6)
    latents = [torch.randn(ROWS, *LATENTS[architecture], generator=generator)]
    adapter = training_adapter(architecture)
    levels = LEVELS.expand(ROWS, -1)
    prompts = _prompts(architecture)
    log_probs = []
    velocities = []
    for step in range(len(LEVELS) - 1):
        x = latents[-1]
        sigma = levels[:, step]
        following = levels[:, step + 1]
        velocity = adapter.velocity(_before_updates(folder), prompts, x, sigma * 1000, 1.0, dtype=torch.float32)
        mean, std = sde.moments(
            kind, x, velocity, sigma=sigma, sigma_next=following, sigma_max=levels[:, 0], noise_level=0.7
        )
        latents.append(mean + std * torch.randn(x.shape, generator=generator))
        log_probs.append(sde.log_prob(kind, latents[-1], mean, std))
        velocities.append(agreement.velocity_projections(velocity * 1.01))
    chosen, around = ([0, 2], [0, 1, 2, 3]) if scattered else ([0, 1], [0, 1, 2])
    noise = 0.05 * torch.randn(ROWS, len(chosen), generator=generator)
    return {
        "all_latents": torch.stack([latents[step] for step in around], 1),
        "all_sigmas": levels[:, around],
        "all_timesteps": levels[:, chosen] * 1000,
        "sigma_max": levels[:, :1],
        "rollout_log_probs": torch.stack([log_probs[step] for step in chosen], 1) + noise,
        "velocity_projections": torch.stack([velocities[step] for step in chosen], 1),
        **prompts,
    }


def make_batch(models: Path, case: Any, loss: Any) -> dict[str, Tensor]:
    """The training batch of a case. All samples of the second prompt have the same score.

    Args:
        models: folder with one for each architecture.
    """
    scores = torch.randn(ROWS, generator=torch.Generator().manual_seed(7))
    groups = [str(row // SAMPLES) for row in range(ROWS)]
    scores[SAMPLES : 2 * SAMPLES] = 0.5
    if case.on_recorded_steps:
        kind = case.request.get("sde_type", "sde")
        tensors = _recorded(models / case.model, case.model, kind, case.scattered)
    else:
        clean = torch.randn(ROWS, *LATENTS[case.model], generator=torch.Generator().manual_seed(8))
        tensors = {"clean_latents": clean, "sampler_levels": LEVELS.expand(ROWS, -1), **_prompts(case.model)}
    if loss.loss_mode == "diffusion_dpo":  # pairs of each row and the next one; some of the second prompt
        tensors = {name: value.repeat_interleave(2, 0).roll(-1, 0) for name, value in tensors.items()}
        scores = scores.repeat_interleave(2, 0).roll(-1, 0)
        groups = [str(row // 2) for row in range(2 * ROWS)]
    settings = {
        "adv_estimator": case.estimator,
        "norm_adv_by_std_in_grpo": True,
        "global_std": True,
        "timestep_fraction": case.request.get("timestep_fraction", 1.0),
    }
    samples: Any = SimpleNamespace(tensors=tensors, scores=scores, groups=groups)
    config = OmegaConf.create({"algorithm": settings})
    batch = training_algorithm(loss.loss_mode).training_batch(samples, loss, config, seed=9)
    if case.spoiled is not None:
        batch["advantages"][case.spoiled] = torch.nan
    return batch
