"""PURE: the text of a judge's answer, without thoughts and without the fence of a code block."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

THOUGHTS = ("<think>", "</think>")  # models that think, where the server does not separate it (vLLM's reasoning_parser)
REASONING = ("reasoning", "reasoning_content")  # where vLLM puts thoughts that it separates
_FENCED = re.compile(r"\s*```(?:\w*\n)?(.*?)\n?```\s*", re.DOTALL)


class UnusableAnswer(ValueError):
    """An answer in which the judge says nothing about the image."""


@dataclass(frozen=True, slots=True)
class JudgeAnswer:
    """The answer of a judge.

    Attributes:
        is_cut: it ended at `max_tokens`, so its end may be missing.
    """

    text: str
    is_cut: bool = False


def read(choice: Mapping[str, Any]) -> JudgeAnswer:
    """The answer in a choice of OpenAI's chat completions.

    Raises:
        UnusableAnswer: it was refused or withheld, has no text, or ends within the judge's thoughts.
        LookupError, TypeError: it has no message.
    """
    message = choice["message"]
    ending = choice.get("finish_reason")
    content = message["content"]
    refusal = message.get("refusal")
    if refusal or ending == "content_filter":
        text = f": {str(refusal)[:200]!r}" if refusal else ", by a content filter"
        raise UnusableAnswer(f"the judge refused to answer{text}")
    if not isinstance(content, str):
        raise UnusableAnswer("choices[0].message.content is no text")
    begin, end = THOUGHTS
    _, ended, answer = content.rpartition(end)
    only_thoughts = ending == "length" and not content.strip() and any(message.get(name) for name in REASONING)
    if begin in answer or only_thoughts:
        raise UnusableAnswer(f"the answer ends within the judge's thoughts ({begin}): a larger max_tokens has room")
    return JudgeAnswer(answer if ended else content, ending == "length")


def without_fence(text: str) -> str:
    """The text of a code block, if there is nothing else; otherwise the text as it is."""
    fenced = _FENCED.fullmatch(text)
    return fenced[1] if fenced else text


# "Final Score (1-5): 4" has one number, and "Final Score: 3-4" none. A number in another line must be alone in it: "the
# final score.\n1. Alignment" is a list.
_NUMBER = r"(-?\d+(?:[.,]\d+)?)(?![.,]?\d)"
_SCALE = r"(?:\s*(?:/|out of)\s*(\d+))?"
_NO_RANGE = r"(?!\s*(?:-|–|to\b|or\b)\s*\d)"
_FINAL = r"final score(?:\s*\([^)\n]*\))?(?:\s+is)?"
_RATING = re.compile(
    rf"{_FINAL}(?:[^\w\n]*?{_NUMBER}{_SCALE}{_NO_RANGE}|[^\w\n]*\n[^\w]*?{_NUMBER}{_SCALE}[^\w\n]*$)",
    re.IGNORECASE | re.MULTILINE,
)
_BETTER = re.compile(r"better(?: image)?(?: is)?[^\w\n]*([12])(?!\d|[.,]\d)", re.IGNORECASE)
_ALONE = re.compile(rf"\W*?{_NUMBER}{_SCALE}[^\w]*")


def rating(answer: JudgeAnswer, highest: float | None = None) -> float | None:
    """The last rating after "Final Score:" in an answer, or the number that is all of it; None if there is none.

    Args:
        highest: the best rating; "4/10" is no rating up to 5. None: any.
    """
    # If an answer is cut at max_tokens, its last number may lack digits.
    text = re.sub(r"\S+\Z", "", answer.text) if answer.is_cut else answer.text
    alone = _ALONE.fullmatch(text)
    matches = [alone, *_RATING.finditer(text)] if alone else list(_RATING.finditer(text))
    if not matches or (last := matches[-1]) is None:
        return None
    number, scale, *others = last.groups()
    if number is None:
        number, scale = others
    if highest is not None and scale is not None and float(scale) != highest:
        return None
    return float(number.replace(",", "."))


def better_of_two(answer: JudgeAnswer) -> int | None:
    """1 or 2: the last image that an answer calls "Better:", or the number that is all of it; None if it names none."""
    text = re.sub(r"\S+\Z", "", answer.text) if answer.is_cut else answer.text
    if text.strip() in ("1", "2"):
        return int(text)
    named = _BETTER.findall(text)
    return int(named[-1]) if named else None
