"""Scorer on a reward server that takes latents: a reward model in the latent space of the trained model's VAE."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from verl_omni.reward_loop.rewards.http import request, score_fields, text_fields, url_problems
from verl_omni.reward_loop.setting_types import NotNegative, Retries, Seconds


def compute_score(
    data_source: str,
    solution_image: Tensor,
    ground_truth: Any,
    extra_info: dict[str, Any],
    server_url: str,
    timeout: Seconds = 60.0,
    max_retries: Retries = 2,
    retry_backoff: NotNegative = 1.0,
    noise_level: NotNegative = 0.0,
    noise_seed: int | None = None,
    score_scale: float = 1.0,
    score_bias: float = 0.0,
) -> dict[str, float] | None:
    """score_scale * score + score_bias, with the score of the server at `server_url`.

    Sends JSON: `prompt`, `ground_truth`, `data_source`, `extra_info` (its values that JSON has), `latents` (float32,
    little-endian, base64), `shape` of the latents, `noise_level` and `noise_seed`. Expects JSON with a number `score`;
    further numbers are reported.

    Args:
        solution_image: the final latents of a sample, which the engine returns with `output_type: latent`.
        timeout: seconds per attempt. max_retries: attempts after the first, while the server is unreachable or answers
            5xx. retry_backoff: as for the scorer `http`.
        noise_level, noise_seed: level and seed of the noise that the server adds to the latents before it scores them.

    Returns:
        `score`, `server_score`, and the server's further numbers; None if the server's score is null.

    Raises:
        RewardServerError: no attempt succeeded, or the response has no score.
        ValueError: the sample has pixels.
    """
    if not solution_image.is_floating_point():
        raise ValueError(
            f"the scorer latent_http takes latents, and got {solution_image.dtype} pixels; write "
            "actor_rollout_ref.rollout.pipeline.output_type=latent, and both as that of val_kwargs.pipeline"
        )
    values = solution_image.detach().float().cpu().contiguous().numpy().astype("<f4")
    body = {
        **text_fields(data_source, ground_truth, extra_info),
        "latents": base64.b64encode(values.tobytes()).decode(),
        "shape": list(values.shape),
        "noise_level": noise_level,
        "noise_seed": noise_seed,
    }
    found = score_fields(server_url, request(server_url, body, timeout, max_retries + 1, retry_backoff))
    if found is None:
        return None
    return {**found, "score": score_scale * found["score"] + score_bias, "server_score": found["score"]}


def setting_problems(given: Mapping[str, Any]) -> list[str]:
    """Messages about invalid values of settings."""
    return url_problems("server_url", given)
