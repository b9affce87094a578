"""PURE: what a scorer returned or raised, as a reward worker sends it: plain values, and errors as text."""

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

LONGEST_TEXT = 2000  # characters of an error: it becomes a line of the log and an event of the run
EXPECTED = "return a number, or a dict with 'score'"
SIMPLE = (bool, int, float, str, type(None))
NO_REWARD = math.nan  # the reward of a sample that could not be scored; no scorer can return it
FAILURE = "scoring_failure"  # in a reward worker's result, and the column of a batch: a `ScoringFailure` or None
LARGEST_SCORE = float(np.finfo(np.float32).max)


class ScorerFailed(RuntimeError):
    """A scorer does not exist or cannot be imported, or too many samples have no score; the message names it."""


class TooManyUnscored(ScorerFailed):
    """More samples of a batch have no score than `reward.max_failed_share` allows."""


@dataclass(frozen=True, slots=True)
class ScoringFailure:
    """Why a scorer gave a sample no score.

    It has text only: the scorer's own error may not fit through Ray's serialization.

    Attributes:
        text: the scorer's name and its error.
        required: whether it counts in `reward.max_failed_share`.
        has_reward: whether the sample has a reward all the same, because the scorer's weight is 0.
    """

    text: str
    required: bool = True
    has_reward: bool = False


def failed_score(scorer: str, error: BaseException) -> str:
    """The text of a scorer's error, with its name."""
    return f"{scorer} failed: {error_text(error)}"


def unscored(failure: ScoringFailure, extra_info: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The result of a sample without a reward, in verl's format."""
    return {"reward_score": NO_REWARD, "reward_extra_info": dict(extra_info or {}), FAILURE: failure}


def failure_of(score: float | None, failure: ScoringFailure | None) -> ScoringFailure | None:
    """Why a sample has no reward; also where an agent loop or a reward manager of the user gave a NaN.

    Args:
        score: None: not scored yet.
    """
    if failure is None and score is not None and not math.isfinite(score):
        return ScoringFailure(f"the score is {score}, which is not finite")
    return failure


def failures_allowed(samples: int, share: float) -> int:
    """How many samples of a batch may have no score: the share, rounded up, but never all of them."""
    return min(math.ceil(share * samples - 1e-9), samples - 1)


def too_many_text(first: str, count: int, allowed: int) -> str:
    """Message of `TooManyUnscored`."""
    return (
        f"{first}. {count} {'sample has' if count == 1 else 'samples have'} no score, and reward.max_failed_share "
        f"allows {allowed} in this batch: correct the scorer, or raise the share (docs/reference/rewards.md)"
    )


def error_text(error: BaseException) -> str:
    """`Type: message` of any error, at most `LONGEST_TEXT` characters that UTF-8 can encode."""
    kind = type(error).__name__
    try:
        message = str(error)
    except Exception as broken:  # noqa: BLE001  the class of a user may do anything here
        return f"{kind} (its text is not available: {type(broken).__name__})"
    text = (f"{kind}: {message}" if message else kind).encode(errors="backslashreplace").decode()
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}… ({len(text)} characters)"


def parse_score(result: Any) -> dict[str, Any]:
    """Convert a scorer's result to verl's format.

    Returns:
        `reward_score`, and `reward_extra_info`: the other fields of a scorer's dict, or `acc` for a number. Tensors are
        in CPU memory, and those without dimensions are numbers.

    Raises:
        ValueError: there is no score, it is None or not finite in fp32, or a field cannot be sent to another process.
    """
    if not isinstance(result, Mapping):
        score = _score(result)
        return {"reward_score": score, "reward_extra_info": {"acc": score}}
    if "score" not in result:
        raise ValueError(f"the scorer's dict has no 'score'; it has {sorted(map(str, result))}")
    score = _score(result["score"])
    extra = {_field_name(name): _field(name, value) for name, value in result.items() if name != "score"}
    return {"reward_score": score, "reward_extra_info": extra}


def part_result(answer: Any) -> dict[str, Any]:
    """The result of one of several scorers: as of `parse_score`, without the field `acc` of a number.

    Raises:
        ValueError: as of `parse_score`.
    """
    result = parse_score(answer)
    return result if isinstance(answer, Mapping) else {**result, "reward_extra_info": {}}


def _score(value: Any) -> float:
    if value is None:
        raise ValueError("the scorer returned None: no score for this sample")
    if inspect.iscoroutine(value):
        value.close()
        raise ValueError("the scorer returned a coroutine: define the function itself with `async def`")
    size = value.numel() if isinstance(value, Tensor) else getattr(value, "size", 1)
    if size != 1:
        raise ValueError(f"the scorer returned {size} values for one sample; {EXPECTED}")
    try:
        score = float(value.item() if isinstance(value, (Tensor, np.ndarray)) else value)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        shown = error_text(error) if isinstance(value, (str, int, Tensor)) else type(value).__name__
        raise ValueError(f"the scorer returned no number ({shown}); {EXPECTED}") from error
    if not math.isfinite(score) or abs(score) > LARGEST_SCORE:
        raise ValueError(f"the scorer returned {score}, which is not finite in fp32")
    return score


def _field_name(name: Any) -> str:
    if not isinstance(name, str):
        raise ValueError(f"the scorer's dict has the key {name!r}, which is no text: its fields become columns")
    return name


def _field(name: str, value: Any) -> Any:
    try:
        plain = _plain(value)
        if not isinstance(plain, SIMPLE):
            from ray import cloudpickle  # the trainer checks settings of scorers before it may import Ray

            cloudpickle.dumps(plain)
    except Exception as error:
        raise ValueError(
            f"the scorer's field {name!r} ({type(value).__name__}) cannot be sent to another process: "
            f"{error_text(error)}"
        ) from error
    return plain


def _plain(value: Any) -> Any:
    """The value with tensors in CPU memory: the process that gets it may have no such device."""
    if isinstance(value, Tensor):
        return value.detach().cpu() if value.ndim else value.item()
    if isinstance(value, np.generic):
        return value.item()
    if type(value) is dict:
        return {name: _plain(item) for name, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_plain(item) for item in value)
    return value
