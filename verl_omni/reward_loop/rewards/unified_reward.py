"""Scorer by the rating of a vision-language judge (UnifiedReward, arXiv:2503.05236)."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from verl_omni.reward_loop.setting_types import Attempts, Interval, JudgeModel, JudgeUrl, KeyVariable, Seconds, Tokens

if TYPE_CHECKING:
    from torch import Tensor

    from verl_omni.reward_loop.judge_answers import JudgeAnswer
    from verl_omni.reward_loop.judge_client import Judge

ASKS_JUDGE = True
TEMPLATE = """\
Here are a caption and an image that was generated from it. Rate the image by two criteria:
1. Alignment: does it show the objects, attributes and relations of the caption?
2. Quality: is it sharp, coherent and free of artifacts?
Caption: {prompt}
Give one rating from {lowest} (worst) to {highest} (best); decimals are allowed. Explain it in a sentence or two, and \
end with a line "Final Score: <rating>"."""
Template = Annotated[
    str | None,
    Field(pattern=r"\{prompt\}", description="What the judge is asked, with {prompt} in place of the prompt."),
]
Lowest = Annotated[float, Field(description="The worst rating.")]
Highest = Annotated[float, Field(description="The best rating.")]


async def compute_score(
    data_source: str,
    solution_image: Tensor,
    ground_truth: Any,
    extra_info: Mapping[str, Any],
    base_url: JudgeUrl = None,
    model: JudgeModel = None,
    api_key_env: KeyVariable = None,
    timeout: Seconds = 60.0,
    attempts: Attempts = 3,
    max_tokens: Tokens = 512,
    template: Template = None,
    lowest: Lowest = 1.0,
    highest: Highest = 5.0,
    frame_interval: Interval = 4,
    reward_router_address: str | None = None,
    model_name: str | None = None,
) -> dict[str, float]:
    """(rating - lowest) / (highest - lowest), from 0 to 1; also `rating`.

    The judge rates one image at a time, as in UnifiedReward's pointwise scoring; any vision-language model can be
    asked. For a video, it rates every `frame_interval`-th frame, and their mean counts. The rating is the last number
    after "Final Score:" in its answer, or an answer that is only a number.

    Args:
        base_url, model, api_key_env, timeout, attempts, max_tokens: settings of the judge, see `judge_client`.
        template: the question instead of TEMPLATE; `{prompt}` in it becomes the prompt.
        lowest, highest: the worst and the best rating.

    Returns:
        `score`, and `rating` as the judge gave it.

    Raises:
        JudgeError: the judge did not answer, or its answer has no rating from `lowest` to `highest`.
        ValueError: a setting is missing or invalid.
    """
    from verl_omni.reward_loop.judge_client import connect

    if problems := conflicts({"lowest": lowest, "highest": highest}):
        raise ValueError("; ".join(problems))
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
    question = fill(template or TEMPLATE, str(extra_info.get("prompt")), lowest, highest)
    answers = await judge.ask_about_frames(solution_image, question, frame_interval)
    rating = fmean(_rating(answer, judge, lowest, highest) for answer in answers)
    return {"score": (rating - lowest) / (highest - lowest), "rating": rating}


def _rating(answer: JudgeAnswer, judge: Judge, lowest: float, highest: float) -> float:
    from verl_omni.reward_loop import judge_answers
    from verl_omni.reward_loop.judge_client import JudgeError

    rating = judge_answers.rating(answer, highest)
    if rating is None or not lowest <= rating <= highest:
        shown = "no rating" if rating is None else f"the rating {rating:g}"
        raise JudgeError(
            f"{judge.url}: {shown} in the answer of {judge.model}, expected 'Final Score: N' from {lowest:g} to "
            f"{highest:g} within {judge.max_tokens} tokens: {answer.text[-200:]!r}"
        )
    return rating


def fill(template: str, prompt: str, lowest: float, highest: float) -> str:
    """PURE: the question about an image; the prompt is inserted last, because it may contain braces."""
    bounded = template.replace("{lowest}", f"{lowest:g}").replace("{highest}", f"{highest:g}")
    return bounded.replace("{prompt}", prompt)


def conflicts(given: Mapping[str, Any]) -> list[str]:
    """PURE: messages about settings that do not fit together."""
    lowest = given.get("lowest", 1.0)
    highest = given.get("highest", 5.0)
    return [] if lowest < highest else [f"lowest: {lowest:g} must be less than highest ({highest:g})"]
