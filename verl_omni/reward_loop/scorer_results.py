"""PURE: what a scorer returned or raised, as a reward worker sends it: plain values, and errors as text."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

LONGEST_TEXT = 2000  # characters of an error: it becomes a line of the log and an event of the run
EXPECTED = "return a number, or a dict with 'score'"
SIMPLE = (bool, int, float, str, type(None))
LARGEST_SCORE = float(np.finfo(np.float32).max)


class ScorerFailed(RuntimeError):
    """A scorer raised an error, or returned no usable score; the message names the scorer.

    It carries text only: the scorer's own error may not fit through Ray's serialization.
    """


def scorer_failed(scorer: str, error: BaseException) -> ScorerFailed:
    """The error of a scorer, with its name."""
    return ScorerFailed(f"{scorer} failed: {error_text(error)}")


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
        in host memory, and those without dimensions are numbers.

    Raises:
        ValueError: there is no score, it is not finite in fp32, or a field cannot be sent to another process.
    """
    if not isinstance(result, Mapping):
        score = _score(result)
        return {"reward_score": score, "reward_extra_info": {"acc": score}}
    if "score" not in result:
        raise ValueError(f"the scorer's dict has no 'score'; it has {sorted(map(str, result))}")
    score = _score(result["score"])
    extra = {_field_name(name): _field(name, value) for name, value in result.items() if name != "score"}
    return {"reward_score": score, "reward_extra_info": extra}


def _score(value: Any) -> float:
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
    """The value with tensors in host memory: the process that gets it may have no such device."""
    if isinstance(value, Tensor):
        return value.detach().cpu() if value.ndim else value.item()
    if isinstance(value, np.generic):
        return value.item()
    if type(value) is dict:
        return {name: _plain(each) for name, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_plain(each) for each in value)
    return value
