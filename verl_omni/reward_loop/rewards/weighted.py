"""A weighted sum of scorers of ours, in one call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from verl_omni.reward_loop.rewards import get_scorer


def compute_score(
    data_source: str,
    solution_image: Tensor,
    ground_truth: Any,
    extra_info: Any,
    scorers: Mapping[str, float | Mapping[str, Any]] | None = None,
) -> dict[str, float]:
    """sum(weight * score). Unlike `MultiVisualRewardManager`, the sum is not divided by the weights.

    Args:
        scorers: {name: weight}, or {name: {weight, further settings of the scorer}}.

    Returns:
        `score`, each scorer's score under its name, and its further numbers as `<name>/<field>`.

    Raises:
        ValueError: `scorers` is empty, or one of them is unknown. RuntimeError: one failed; the message names it.
    """
    if not scorers:
        raise ValueError("weighted: scorers must name at least one scorer, such as {jpeg: 1.0}")
    total = 0.0
    parts: dict[str, float] = {}
    for name, wanted in scorers.items():
        settings = dict(wanted) if isinstance(wanted, Mapping) else {"weight": wanted}
        weight = float(settings.pop("weight", 1.0))
        scorer = get_scorer(name)
        try:
            answer = scorer(data_source, solution_image, ground_truth, extra_info, **settings)
        except Exception as error:
            raise RuntimeError(f"reward {name!r} failed: {error}") from error
        fields = dict(answer) if isinstance(answer, Mapping) else {"score": answer}
        score = float(fields.pop("score"))
        total += weight * score
        parts[name] = score
        parts |= {f"{name}/{field}": float(value) for field, value in fields.items()}
    return {"score": total, **parts}
