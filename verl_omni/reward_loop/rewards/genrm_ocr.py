"""Scorer of rendered text: a vision-language judge reads it (Flow-GRPO, arXiv:2505.05470)."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from verl_omni.reward_loop.setting_types import Attempts, Interval, JudgeModel, JudgeUrl, KeyVariable, Seconds, Tokens

if TYPE_CHECKING:
    from torch import Tensor

ASKS_JUDGE = True
QUESTION = (
    "Transcribe all text that is visible in this image, exactly as it is written. "
    "Answer with the text only. If there is no text, answer with an empty line."
)
Question = Annotated[str | None, Field(description="What the judge is asked.")]


async def compute_score(
    data_source: str,
    solution_image: Tensor,
    ground_truth: str,
    extra_info: Mapping[str, Any],
    base_url: JudgeUrl = None,
    model: JudgeModel = None,
    api_key_env: KeyVariable = None,
    timeout: Seconds = 60.0,
    attempts: Attempts = 3,
    max_tokens: Tokens = 256,
    question: Question = None,
    frame_interval: Interval = 4,
    reward_router_address: str | None = None,
    model_name: str | None = None,
) -> dict[str, float]:
    """max(1 - edits / length of `ground_truth`, 0), from 0 to 1, of the text that the judge reads.

    This is the reward of text in Flow-GRPO, with a judge in place of its OCR model.

    For a video, it is the mean over every `frame_interval`-th frame whose score is above 0, as in the code by
    Flow-GRPO's authors; 0 if none is.

    edits is the Levenshtein distance between the text that the judge reads and `ground_truth`, length the number of
    characters of `ground_truth`; both without whitespace, case-folded and in Unicode's form NFKC.

    Args:
        ground_truth: the text that the image must show.
        base_url, model, api_key_env, timeout, attempts, max_tokens: settings of the judge, see `judge_client`.
        question: replaces QUESTION, the default question to the judge.

    Returns:
        `score`; `exact`: 1 if the text is right, otherwise 0; `cut`: 1 if the judge's answer ended at `max_tokens`,
        so that it may have read more than was compared. For a video, the last two are shares of the frames.

    Raises:
        JudgeError: the judge did not answer, or refused to.
        ValueError: the row has no text, or a setting of the judge is missing.
    """
    from verl_omni.reward_loop.judge_answers import without_fence
    from verl_omni.reward_loop.judge_client import connect

    wanted = normalize(str(ground_truth))
    if not wanted or ground_truth == extra_info.get("prompt"):
        raise ValueError(
            f"genrm_ocr: the row has no text to compare with (ground_truth is {ground_truth!r}, its prompt "
            f"{extra_info.get('prompt')!r}); give it a column ground_truth with the text that the image must show"
        )
    judge = connect(
        base_url,
        model,
        api_key_env,
        reward_router_address=reward_router_address,
        model_name=model_name,
        timeout=timeout,
        attempts=attempts,
        max_tokens=max_tokens,
    )
    answers = await judge.ask_about_frames(solution_image, question or QUESTION, frame_interval)
    read = [normalize(without_fence(answer.text)) for answer in answers]
    scores = [score for text in read if (score := text_score(text, wanted)) > 0]
    return {
        "score": fmean(scores or [0.0]),
        "exact": fmean(text == wanted for text in read),
        "cut": fmean(answer.is_cut for answer in answers),
    }


def normalize(text: str) -> str:
    """PURE: the text without whitespace, case-folded, in form NFKC."""
    return "".join(unicodedata.normalize("NFKC", text).casefold().split())


def text_score(read: str, wanted: str) -> float:
    """PURE: max(1 - edits / length of `wanted`, 0)."""
    if len(read) >= 2 * len(wanted):
        return 0.0  # at least as many edits as `wanted` is long; the judge's answer may be long
    return max(1 - edit_distance(read, wanted) / len(wanted), 0.0)


def edit_distance(left: str, right: str) -> int:
    """PURE: Levenshtein distance: the least number of insertions, deletions and substitutions."""
    row = list(range(len(right) + 1))
    for number, letter in enumerate(left, 1):
        diagonal = row[0]
        row[0] = number
        for column, other in enumerate(right, 1):
            diagonal, row[column] = row[column], min(row[column] + 1, row[column - 1] + 1, diagonal + (letter != other))
    return row[-1]
