"""Scorer on a reward server that takes latents: a reward model in the latent space of the trained model's VAE."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from verl_omni.reward_loop.setting_types import Backoff, NotNegative, Retries, Seconds, ServerUrl

if TYPE_CHECKING:
    from torch import Tensor

MODALITY = "latent"
Level = Annotated[NotNegative, Field(description="Level of the noise that the server adds to the latents.")]
Seed = Annotated[int | None, Field(description="Seed of that noise.")]
Scale = Annotated[float, Field(description="The server's score is multiplied by this.")]
Bias = Annotated[float, Field(description="Added to the score after that.")]


def compute_score(
    data_source: str,
    solution_image: Tensor,
    ground_truth: Any,
    extra_info: dict[str, Any],
    server_url: ServerUrl,
    timeout: Seconds = 60.0,
    max_retries: Retries = 2,
    retry_backoff: Backoff = 1.0,
    noise_level: Level = 0.0,
    noise_seed: Seed = None,
    score_scale: Scale = 1.0,
    score_bias: Bias = 0.0,
) -> dict[str, float] | None:
    """score_scale * score + score_bias, with the score of a server of yours that takes latents.

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
    from verl_omni.reward_loop.reward_server import request, score_fields, text_fields

    if not solution_image.is_floating_point():
        raise ValueError(
            f"the scorer latent_http takes latents, and got {solution_image.dtype} pixels; write "
            "actor_rollout_ref.rollout.pipeline.output_type=latent, and val_kwargs.pipeline.output_type=both"
        )
    values = solution_image.detach().float().cpu().contiguous().numpy().astype("<f4")
    body = {
        **text_fields(data_source, ground_truth, extra_info),
        "latents": base64.b64encode(values.tobytes()).decode(),
        "shape": list(values.shape),
        "noise_level": noise_level,
        "noise_seed": noise_seed,
    }
    fields = score_fields(server_url, request(server_url, body, timeout, max_retries + 1, retry_backoff))
    if fields is None:
        return None
    return {**fields, "score": score_scale * fields["score"] + score_bias, "server_score": fields["score"]}
