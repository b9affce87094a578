"""A reward for videos: frames go to a server, which answers with a score. Used by wan-dance-grpo.yaml."""

from __future__ import annotations

import base64
import io
from typing import Any

import httpx2
import numpy as np
from PIL import Image
from torch import Tensor


def compute_score(
    data_source: str,
    solution_image: Tensor,
    ground_truth: str,
    extra_info: dict[str, Any],
    server: str,
    frames: int = 8,
    timeout: float = 120.0,
) -> float:
    """Score of a video.

    Args:
        solution_image: uint8 [T, 3, H, W].
        server: URL of the server; it gets JSON with `prompt` and `frames` (PNG, base64), and answers with `score`.
        frames: number of frames to send, evenly spaced, the first and the last among them.
        timeout: seconds to wait for the answer.

    Raises:
        httpx2.HTTPError: the server cannot be reached, or refuses the request.
    """
    places = np.linspace(0, len(solution_image) - 1, min(frames, len(solution_image))).round().astype(int)
    sent = {"prompt": extra_info["prompt"], "frames": [_png(solution_image[place]) for place in places]}
    answer = httpx2.post(server, json=sent, timeout=timeout)
    answer.raise_for_status()
    return float(answer.json()["score"])


def _png(image: Tensor) -> str:
    file = io.BytesIO()
    Image.fromarray(image.permute(1, 2, 0).numpy()).save(file, format="PNG")
    return base64.b64encode(file.getvalue()).decode()
