"""`VisualRewardManager`: one scorer."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

import torch
from typing_extensions import override
from verl import DataProto
from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase

from verl_omni.reward_loop.rewards import get_scorer
from verl_omni.reward_loop.scorer_signature import parameters_of, signature_of
from verl_omni.utils.pixels import as_pixels


class VisualRewardManager(RewardManagerBase):  # type: ignore[misc]
    """Scores images (or latents) with `reward.custom_reward_function`, otherwise with `reward.scorer`.

    Args:
        compute_score: the user's function; without one, verl passes its scorer of texts, which is ignored.

    Raises:
        ValueError: the scorer does not exist, or does not take these settings.
    """

    def __init__(
        self,
        config: Any,
        tokenizer: Any,
        compute_score: Callable[..., Any] | None,
        reward_router_address: str | None = None,
        reward_model_tokenizer: Any = None,
    ) -> None:
        super().__init__(config, tokenizer, compute_score)
        self.custom = compute_score if config.reward.custom_reward_function.path is not None else None
        self.offered = {
            "reward_router_address": reward_router_address,
            "reward_model_tokenizer": reward_model_tokenizer,
            "model_name": config.reward.reward_model.get("model_path"),
        }
        if self.custom is None and (name := config.reward.get("scorer")):
            check_settings(get_scorer(name), config.reward.scorer_kwargs, "reward.scorer_kwargs")

    @override
    async def run_single(self, data: DataProto) -> dict[str, Any]:
        """Score one sample.

        Returns:
            `reward_score`, and `reward_extra_info`: the other fields of a scorer's dict, or `acc` for a number.

        Raises:
            ValueError: the response has the wrong dtype, or the score is not finite.
        """
        call = self.arguments(data)
        scorer, settings = self.select_scorer(str(call["data_source"]))
        result = await self.call(scorer, {**call, **settings})
        return parse_score(result)

    def select_scorer(self, data_source: str) -> tuple[Callable[..., Any], dict[str, Any]]:
        """The function and its settings; without `reward.scorer`, the data source names the scorer."""
        if self.custom is not None:
            return self.custom, {}
        return get_scorer(self.config.reward.get("scorer") or data_source), dict(self.config.reward.scorer_kwargs)

    def arguments(self, data: DataProto) -> dict[str, Any]:
        """Arguments of every scorer for a sample. The data set's row is not changed."""
        if len(data) != 1:
            raise ValueError(f"a reward manager scores one sample at a time, and got {len(data)}")
        row = data[0].non_tensor_batch
        image = self._pixels(data.batch["responses"][0], validate=bool(data.meta_info.get("validate")))
        return {
            "data_source": row["data_source"],
            "solution_image": image,
            "ground_truth": row["reward_model"]["ground_truth"],
            "extra_info": {**(row.get("extra_info") or {}), **(row.get("tool_extra_fields") or {})},
        }

    def _pixels(self, response: torch.Tensor, *, validate: bool) -> torch.Tensor:
        """Pixels as uint8, or latents, as the settings request them from the engine.

        Raises:
            ValueError: the sample has another dtype.
        """
        rollout = self.config.actor_rollout_ref.rollout
        requested = dict(rollout.pipeline) | (dict(rollout.val_kwargs.pipeline) if validate else {})
        if requested["output_type"] == "latent":
            if not response.is_floating_point():
                raise ValueError(f"Expected floating-point latent responses, got {response.dtype}.")
            return response
        dtype = requested.get("pixel_dtype", "uint8")
        if response.dtype != getattr(torch, dtype):
            raise ValueError(
                f"Expected {dtype} pixel responses for output_type={requested['output_type']!r}, got {response.dtype}."
            )
        return as_pixels(response)

    async def call(self, scorer: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        """Call a scorer, with those of verl's extra arguments that it has; plain functions run in a thread."""
        known = parameters_of(scorer)
        extra = {name: value for name, value in self.offered.items() if name in known}
        if inspect.iscoroutinefunction(scorer):
            return await scorer(**arguments, **extra)
        return await asyncio.get_running_loop().run_in_executor(None, partial(scorer, **arguments, **extra))

    @classmethod
    @override
    def assemble_rm_scores(cls, data: DataProto, scores: list[float]) -> torch.Tensor:
        """One score per sample, float32 [B, 1]."""
        return torch.tensor(scores, dtype=torch.float32).unsqueeze(-1)


def check_settings(scorer: Callable[..., Any], given: Collection[str], where: str) -> None:
    """Refuse settings that the scorer does not take.

    Raises:
        ValueError: a name is unknown or missing; the message has a line for each.
    """
    if problems := signature_of(scorer).problems(given):
        raise ValueError("\n".join(f"{where}.{problem}" for problem in problems))


def parse_score(result: Any) -> dict[str, Any]:
    """Convert a scorer's result to verl's format.

    Raises:
        ValueError: it has no score, or the score is not finite.
    """
    if isinstance(result, Mapping):
        if "score" not in result:
            raise ValueError(f"the scorer's dict has no 'score'; it has {sorted(result)}")
        score = float(result["score"])
        extra = {name: value for name, value in result.items() if name != "score"}
    else:
        score = float(result)
        extra = {"acc": score}
    if not math.isfinite(score):
        raise ValueError(f"the scorer returned {score}, which is not finite")
    return {"reward_score": score, "reward_extra_info": extra}
