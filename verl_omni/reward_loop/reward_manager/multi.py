"""`MultiVisualRewardManager`: the weighted mean or sum of several scorers."""

import logging
import math
from dataclasses import replace
from typing import Any

from typing_extensions import override
from verl import DataProto

from verl_omni.reward_loop.part_settings import part_problems, pools_of, weight_problem
from verl_omni.reward_loop.reward_manager.visual import VisualRewardManager, group_of, plain_settings
from verl_omni.reward_loop.scorer_parts import Part, load_part
from verl_omni.reward_loop.scorer_pools import PooledScorer, PooledScorerError, PoolLost, find_processes
from verl_omni.reward_loop.scorer_results import (
    FAILURE,
    ScorerFailed,
    ScoringFailure,
    failed_score,
    part_result,
    unscored,
)
from verl_omni.reward_loop.scoring_queue import DEADLINE_SECONDS, Group
from verl_omni.reward_loop.setting_types import COMBINED

logger = logging.getLogger(__name__)
AGGREGATIONS = ("weighted_mean", "weighted_sum", "normalized_sum")


class MultiVisualRewardManager(VisualRewardManager):
    """`reward.reward_functions`: {key: {name or path + name, weight, required or use, further settings}}.

    The reward is sum(weight * score), and with `reward.aggregation: weighted_mean` that over sum(weight), as
    with `normalized_sum`, for which the trainer normalizes each score in its group and adds them. Extra fields:
    `reward/<key>`, `reward/<key>/<field>` for a scorer that returns a dict, and `reward/combined`. A part that fails
    has no fields. If its weight is not 0, the sample has no reward. With `required: false` its failures do not count in
    `reward.max_failed_share`. A part with `use: evaluation` scores the samples of evaluations only, and is not in
    their reward.

    Raises:
        ValueError: there is no part, one has invalid settings (`part_problems`), the weights do not add up to something
            positive, `aggregation` is unknown, a scorer does not exist, or one does not take its settings.
    """

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        functions = plain_settings(config.reward.get("reward_functions"))
        if not functions:
            raise ValueError("reward.reward_functions must be non-empty for MultiVisualRewardManager")
        if problems := [line for key, settings in functions.items() for line in part_problems(key, settings)]:
            raise ValueError("\n".join(problems))
        self.parts = [load_part(key, settings) for key, settings in functions.items()]
        self._pool_sizes = {key: pool.processes for key, pool in pools_of(functions).items()}
        self._pooled: dict[str, PooledScorer] = {}
        if problem := weight_problem(functions):
            raise ValueError(problem)
        aggregation = config.reward.get("aggregation", AGGREGATIONS[0])
        if aggregation not in AGGREGATIONS:
            raise ValueError(f"reward.aggregation: {aggregation!r} is not one of {', '.join(AGGREGATIONS)}")
        self.divisor = 1.0 if aggregation == "weighted_sum" else sum(part.weight for part in self.parts)

    @override
    async def run_single(self, data: DataProto) -> dict[str, Any]:
        """Score one sample with every part.

        Returns:
            As `VisualRewardManager`. A sample whose reward does not need the parts that failed has both the reward and
            the failure. With several failures, the first required one is returned.

        Raises:
            ScorerFailed: a required scorer ended the process too often.
        """
        sample = self.arguments(data)
        group = group_of(data)
        is_evaluation = bool(data.meta_info.get("validate"))
        extra: dict[str, Any] = {}
        failures: list[ScoringFailure] = []
        combined = 0.0
        for part in self.parts:
            if part.evaluates and not is_evaluation:
                continue
            scored = await self._score_part(part, sample, group)
            score = scored["reward_score"]
            if FAILURE in scored:
                failures.append(scored[FAILURE])
            else:
                extra[f"reward/{part.key}"] = score
                extra |= {f"reward/{part.key}/{name}": value for name, value in scored["reward_extra_info"].items()}
            if part.weight != 0:
                combined += part.weight * score
        combined /= self.divisor
        failure = next((reported for reported in failures if reported.required), failures[0] if failures else None)
        if failure is not None and math.isnan(combined):
            return unscored(failure, extra)
        result = {"reward_score": combined, "reward_extra_info": {**extra, f"reward/{COMBINED}": combined}}
        return result if failure is None else {**result, FAILURE: replace(failure, has_reward=True)}

    async def _score_part(self, part: Part, sample: dict[str, Any], group: Group | None) -> dict[str, Any]:
        if self.deaths is not None and (problem := self.deaths.problem(part.key)):
            text = f"reward {part.key!r} failed: {problem}"
            if part.required:
                raise ScorerFailed(text)
            return unscored(ScoringFailure(text, part.required))
        name = f"reward {part.key!r}"
        try:
            if part.scorer is None:
                return await self._pooled_scorer(part.key).score(sample, group)
            if part.scorer.may_change_samples:  # the next part scores the same sample
                image = sample["solution_image"].clone()
                sample = {**sample, "solution_image": image, "extra_info": dict(sample["extra_info"])}
            queue = self.queue(part.key, part.scorer.function, part.scorer.settings)
            return part_result(await queue.score(sample, group))
        except Exception as error:
            if part.required and isinstance(error, PoolLost):
                raise ScorerFailed(f"{name} failed: {error}") from error
            logger.warning("%s failed; a sample has no score of it", name, exc_info=error)
            told = isinstance(error, (PoolLost, PooledScorerError))  # their text has what failed
            text = f"{name} failed: {error}" if told else failed_score(name, error)
            return unscored(ScoringFailure(text, part.required))

    def _pooled_scorer(self, key: str) -> PooledScorer:
        """The connection to the pool of a scorer, made at its first sample."""
        if key not in self._pooled:
            deadline = float(self.config.reward.get("deadline_seconds", DEADLINE_SECONDS))
            self._pooled[key] = PooledScorer(find_processes(key, self._pool_sizes[key]), deadline)
        return self._pooled[key]
