"""Scorer on a reward server, one sample in each request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from verl_omni.reward_loop.setting_types import JSON, PICKLE, Attempts, Backoff, Protocol, Seconds, ServerUrl

if TYPE_CHECKING:
    from torch import Tensor


def compute_score(
    data_source: str,
    solution_image: Tensor,
    ground_truth: Any,
    extra_info: dict[str, Any],
    url: ServerUrl,
    timeout: Seconds = 60.0,
    attempts: Attempts = 3,
    retry_backoff: Backoff = 1.0,
    protocol: Protocol = JSON,
) -> dict[str, float] | None:
    """The score of a server of yours that takes one image or video.

    Sends JSON: `prompt`, `ground_truth`, `data_source`, `extra_info` (its values that JSON has), and `image` (PNG,
    base64), or of a video `frames`, a list of all of them. Expects JSON with a number `score`; further numbers are
    reported as metrics. With null as `score`, the sample has none: the result is None.

    Args:
        timeout: seconds per attempt. attempts: number of attempts while the server is unreachable, answers 408, 425,
            429 or 5xx, or no JSON.
        retry_backoff: seconds before the second attempt; later pauses are twice as long each, up to 10 seconds. A
            longer `Retry-After` of the server counts.
        protocol: `pickle` for a server of deepgen_rl's kind (`pickled_messages`), whose prompt is `ground_truth`.

    Raises:
        RewardServerError: no attempt succeeded, or the response has no score.
        ValueError: a video with `protocol="pickle"`.
    """
    from verl_omni.reward_loop.reward_server import pickled_scores, request, sample_body, score_fields

    if protocol == PICKLE:
        scores = pickled_scores(url, [solution_image], [str(ground_truth)], timeout, attempts, retry_backoff)
        return {"score": scores[0]}
    body = sample_body(data_source, solution_image, ground_truth, extra_info)
    return score_fields(url, request(url, body, timeout, attempts, retry_backoff))
