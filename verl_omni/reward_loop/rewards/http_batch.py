"""Scorer on a reward server that takes several images in one request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from verl_omni.reward_loop.setting_types import JSON, PICKLE, Attempts, Backoff, Protocol, Seconds, ServerUrl

if TYPE_CHECKING:
    from torch import Tensor


def compute_score(
    data_sources: Sequence[str],
    solution_images: Sequence[Tensor],
    ground_truths: Sequence[Any],
    extra_infos: Sequence[dict[str, Any]],
    url: ServerUrl,
    timeout: Seconds = 60.0,
    attempts: Attempts = 3,
    retry_backoff: Backoff = 1.0,
    protocol: Protocol = JSON,
) -> list[dict[str, float] | None]:
    """The scores of a server of yours that takes up to `reward.batch_size` samples in a request.

    Sends JSON: `samples`, a list of the objects that the scorer `http` sends. Expects JSON: `scores`, a list with an
    object for each sample, as the scorer `http` expects it.

    Args:
        timeout: seconds per attempt. attempts: number of attempts while the server is unreachable or answers 5xx.
        retry_backoff, protocol: as of the scorer `http`.

    Raises:
        RewardServerError: no attempt succeeded, or the response has no score for each sample.
    """
    from verl_omni.reward_loop.reward_server import (
        RewardServerError,
        pickled_scores,
        request,
        sample_body,
        score_fields,
    )

    if protocol == PICKLE:
        prompts = [str(truth) for truth in ground_truths]
        numbers = pickled_scores(url, solution_images, prompts, timeout, attempts, retry_backoff)
        return [{"score": score} for score in numbers]
    columns = zip(data_sources, solution_images, ground_truths, extra_infos, strict=True)
    samples = [sample_body(*column) for column in columns]
    answer = request(url, {"samples": samples}, timeout, attempts, retry_backoff)
    scores = answer.get("scores") if isinstance(answer, dict) else None
    if not isinstance(scores, list) or len(scores) != len(samples):
        raise RewardServerError(f"{url}: the response has no {len(samples)} 'scores': {str(answer)[:200]}")
    return [score_fields(url, score) for score in scores]
