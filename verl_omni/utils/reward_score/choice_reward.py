"""PURE: the scorer `choice` of the reference, for answers in text: a run here trains no model that gives any."""

import re

_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def compute_score(solution_str: str, ground_truth: str) -> dict[str, float]:
    """Whether the text in `<answer>...</answer>` is the right choice, without whitespace around it.

    A response without the tag is wrong, also where the ground truth has none (verl-omni#643).

    Args:
        ground_truth: the choice, with or without the tag.

    Returns:
        `score` and `accuracy`, which are the same: 1 or 0.
    """
    answer = _ANSWER.search(solution_str)
    wanted = _ANSWER.search(ground_truth)
    right = answer is not None and answer[1].strip() == (wanted[1] if wanted else ground_truth).strip()
    return {"score": float(right), "accuracy": float(right)}
