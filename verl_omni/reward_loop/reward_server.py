"""Client of a reward server: sends an image or video and its prompt, receives a score. Connections are kept."""

import base64
import io
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import httpx2
from PIL import Image
from tenacity import Retrying, stop_after_attempt, wait_exponential
from torch import Tensor

from verl_omni.reward_loop import http_exchange, pickled_messages
from verl_omni.reward_loop.http_answers import AGAIN, Answer, AskAgain, pause_before
from verl_omni.reward_loop.scorer_results import LARGEST_SCORE, error_text

LONGEST_GROWN_PAUSE = 10.0  # seconds
SLEEP: Callable[[float], None] = time.sleep  # between two attempts


class RewardServerError(RuntimeError):
    """The reward server did not return a score."""


class NoResponse(RewardServerError, ConnectionError):
    """The reward server did not respond."""


def pickled_scores(
    url: str, images: Sequence[Tensor], prompts: Sequence[str], timeout: float, attempts: int, retry_backoff: float
) -> list[float]:
    """Scores of images uint8 [3, H, W] by a server that speaks pickle, one each; errors as of `compute_score`."""
    body = pickled_messages.encode(images, prompts)
    answer = _exchange(url, {"content": body}, _read_pickle, timeout, attempts, retry_backoff)
    try:
        return [_finite(url, score) for score in pickled_messages.scores(answer, len(images))]
    except ValueError as error:
        raise RewardServerError(f"{url}: {error}") from error


def sample_body(data_source: str, image: Tensor, ground_truth: Any, extra_info: dict[str, Any]) -> dict[str, Any]:
    """JSON of a sample: an image uint8 [3, H, W], or a video [T, 3, H, W]."""
    pixels: dict[str, Any] = (
        {"image": png_base64(image)} if image.ndim == 3 else {"frames": [png_base64(frame) for frame in image]}
    )
    return {**text_fields(data_source, ground_truth, extra_info), **pixels}


def text_fields(data_source: str, ground_truth: Any, extra_info: Mapping[str, Any]) -> dict[str, Any]:
    """JSON of a sample without what the model generated."""
    return {
        "prompt": extra_info.get("prompt"),
        "ground_truth": ground_truth,
        "data_source": data_source,
        "extra_info": {name: value for name, value in extra_info.items() if _is_json(value)},
    }


def _is_json(value: Any) -> bool:
    """Whether JSON has a value; not images, tensors, dates and NaN."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True


def request(url: str, body: dict[str, Any], timeout: float, attempts: int, retry_backoff: float) -> Any:
    """Post JSON and return the JSON of the response; arguments as in `compute_score`.

    Raises:
        RewardServerError: no attempt succeeded, or the server refused the request.
    """
    return _exchange(url, {"json": body}, _read_json, timeout, attempts, retry_backoff)


def _exchange(
    url: str,
    sent: Mapping[str, Any],
    read: Callable[[str, Answer], Any],
    timeout: float,
    attempts: int,
    retry_backoff: float,
) -> Any:
    growing = wait_exponential(multiplier=retry_backoff, max=LONGEST_GROWN_PAUSE)
    again = Retrying(
        stop=stop_after_attempt(attempts),
        wait=lambda state: pause_before(state, growing),
        reraise=True,
        retry=AGAIN,
        sleep=SLEEP,
    )
    try:
        return again(lambda: read(url, http_exchange.post_and_wait(url, timeout, **sent)))
    except AskAgain as error:
        raise RewardServerError(f"{url}: {error}, in each of {attempts} attempts") from error
    except httpx2.TransportError as error:
        text = f"no response in {attempts} attempts of {timeout:g} s ({error_text(error)})"
        raise NoResponse(f"{url}: {text}") from error
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
        raise RewardServerError(f"{url}: {error_text(error)}") from error


def score_fields(url: str, answer: Any) -> dict[str, float] | None:
    """The numbers of a response for one sample; None if its score is null.

    Raises:
        RewardServerError: it has no number `score`, or one that is not finite in fp32.
    """
    if isinstance(answer, dict) and answer.get("score", math.nan) is None:
        return None
    numbers = {name: _number(value) for name, value in answer.items()} if isinstance(answer, dict) else {}
    if (score := numbers.get("score")) is None:
        raise RewardServerError(f"{url}: the response has no number 'score': {str(answer)[:200]}")
    _finite(url, score)
    return {name: value for name, value in numbers.items() if value is not None}


def _finite(url: str, score: float) -> float:
    if not abs(score) <= LARGEST_SCORE:
        raise RewardServerError(f"{url}: the response has the score {score}, which is not finite in fp32")
    return score


def _number(value: Any) -> float | None:
    """A number of JSON, infinite if it is too large; None for any other value."""
    if not isinstance(value, (int, float)):
        return None
    try:
        return float(value)
    except OverflowError:  # Python's integers have no limit
        return math.inf if value > 0 else -math.inf


def _read_json(url: str, answer: Answer) -> Any:
    _check_status(url, answer)
    return answer.json()


def _read_pickle(url: str, answer: Answer) -> Any:
    """The values of an answer. Such servers answer any error with its traceback, most with the status 500."""
    if text := pickled_messages.error_in(answer.body):
        raise AskAgain(f"status {answer.status}: {text}")
    _check_status(url, answer)
    return pickled_messages.decode(answer.body)


def _check_status(url: str, answer: Answer) -> None:
    answer.check_status()
    if not answer.is_success:
        raise RewardServerError(f"{url}: {answer.shown}")


def png_base64(image: Tensor) -> str:
    """A PNG, base64, of an image uint8 [3, H, W]."""
    file = io.BytesIO()
    Image.fromarray(image.permute(1, 2, 0).contiguous().numpy()).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()
