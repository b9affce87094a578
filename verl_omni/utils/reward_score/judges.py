"""Scorers of judges, called as verl calls a reward function."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from torch import Tensor

from verl_omni.utils.pixels import as_pixels

Judged = Callable[..., Awaitable[dict[str, float]]]


def with_verls_arguments(scorer: Judged) -> Judged:
    """The scorer with the arguments that verl passes, in its order, and pixels that may be floats."""

    async def compute_score(
        data_source: str,
        solution_image: Tensor,
        ground_truth: Any,
        extra_info: Mapping[str, Any] | None = None,
        reward_router_address: str | None = None,
        reward_model_tokenizer: Any = None,
        model_name: str | None = None,
        **settings: Any,
    ) -> dict[str, float]:
        """The score of an image by the judge that verl's reward router serves, or that `settings` name.

        Args:
            solution_image: uint8, or floats from 0 to 1, [3, H, W].
            reward_model_tokenizer: not needed; verl passes it.
            settings: settings of the scorer; results and errors are the scorer's too.
        """
        return await scorer(
            data_source,
            as_pixels(solution_image),
            ground_truth,
            extra_info or {},
            reward_router_address=reward_router_address,
            model_name=model_name,
            **settings,
        )

    return compute_score
