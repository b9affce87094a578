"""The scorer `http` with pickled messages, at its import path in the reference."""

import asyncio
from typing import Any

from torch import Tensor

from verl_omni.reward_loop.rewards import http
from verl_omni.reward_loop.setting_types import PICKLE
from verl_omni.utils.pixels import as_pixels


async def compute_score(
    data_source: str,
    solution_image: Tensor,
    ground_truth: str,
    extra_info: dict[str, Any] | None = None,
    server_url: str = "",
    timeout: float = 60.0,
    max_retries: int = 2,
    retry_backoff: float = 0.5,
) -> float:
    """The score of an image by the server at `server_url`, in a thread.

    Args:
        solution_image: uint8, or floats from 0 to 1, [3, H, W].
        ground_truth: sent to the server as the prompt.
        timeout: seconds of each attempt. max_retries: attempts after the first.
        retry_backoff: seconds before the second attempt; later pauses are twice as long each, up to 10 seconds.

    Raises:
        RewardServerError: no attempt succeeded, or the answer has no score. ValueError: `solution_image` is a video.
    """
    fields = await asyncio.to_thread(
        http.compute_score,
        data_source,
        as_pixels(solution_image),
        ground_truth,
        extra_info or {},
        url=server_url,
        timeout=timeout,
        attempts=max_retries + 1,
        retry_backoff=retry_backoff,
        protocol=PICKLE,
    )
    assert fields is not None  # only JSON has a score that is null
    return fields["score"]
