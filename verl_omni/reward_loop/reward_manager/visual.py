"""`VisualRewardManager`: one scorer."""

import logging
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from omegaconf import OmegaConf
from typing_extensions import override
from verl import DataProto
from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase

from verl_omni.reward_loop.rewards import get_scorer
from verl_omni.reward_loop.scorer_deaths import ScorerDeaths
from verl_omni.reward_loop.scorer_names import custom_name, scorer_name
from verl_omni.reward_loop.scorer_parts import check_function, check_settings, resolve
from verl_omni.reward_loop.scorer_results import ScorerFailed, ScoringFailure, failed_score, parse_score, unscored
from verl_omni.reward_loop.scorer_signature import parameters_of
from verl_omni.reward_loop.scoring_queue import DEADLINE_SECONDS, Group, ScoringQueue
from verl_omni.utils.pixels import BOTH, as_pixels
from verl_omni.utils.registry import import_modules

logger = logging.getLogger(__name__)
GROUP_COLUMN = "sample_group"  # of a batch for reward workers: a `Group` for each sample
BATCH_SIZE = 32  # for configurations without `reward.batch_size`


class VisualRewardManager(RewardManagerBase):  # type: ignore[misc]
    """Scores images (or latents) with `compute_score` or `reward.custom_reward_function`, otherwise `reward.scorer`.

    A scorer whose parameters are `data_sources`, `solution_images`, `ground_truths` and `extra_infos` gets lists of up
    to `reward.batch_size` samples and returns a list of results. Each call ends within `reward.deadline_seconds`.

    Args:
        compute_score: the user's function. Without one, verl passes its own scorer of texts, which is ignored.

    Attributes:
        deaths: of the process, by scorer; a reward worker sets it before the first sample.

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
        import_modules(OmegaConf.select(config, "actor_rollout_ref.model.external_lib"))
        self.custom = None if _scores_texts(compute_score) else compute_score
        self.offered = {
            "reward_router_address": reward_router_address,
            "reward_model_tokenizer": reward_model_tokenizer,
            "model_name": OmegaConf.select(config, "reward.reward_model.model_path"),
        }
        self.deaths: ScorerDeaths | None = None
        self._queues: dict[str, ScoringQueue] = {}
        self._sampling: dict[bool, dict[str, Any]] = {}  # of training and of evaluations
        if self.custom is not None:
            check_function(self.custom, "reward.custom_reward_function")
        elif name := config.reward.get("scorer"):
            check_settings(get_scorer(name), self._kwargs(), "reward.scorer_kwargs")

    @override
    async def run_single(self, data: DataProto) -> dict[str, Any]:
        """Score one sample.

        Returns:
            As of `parse_score`; or as of `unscored`, where the scorer raised an error, returned no usable score, or did
            not end within `reward.deadline_seconds`.

        Raises:
            ValueError: the response has the wrong dtype.
            ScorerFailed: the scorer does not exist, cannot be imported, or ended the process too often.
        """
        sample = self.arguments(data)
        source = str(sample["data_source"])
        chosen = self.custom is not None or self.config.reward.get("scorer")  # one scorer for all data sources
        name = f"scorer {self._name(source)}"
        try:
            scorer, settings = self.select_scorer(source)
        except Exception as error:
            raise ScorerFailed(failed_score(name, error)) from error
        key = "" if chosen else source
        if self.deaths is not None and (problem := self.deaths.problem(key)):
            raise ScorerFailed(f"{name} failed: {problem}")
        try:
            queue = self.queue(key, scorer, settings)
            return parse_score(await queue.score(sample, group_of(data)))
        except Exception as error:
            logger.warning("%s failed; a sample has no score", name, exc_info=error)
            return unscored(ScoringFailure(failed_score(name, error)))

    def _name(self, data_source: str) -> str:
        """Name of the scorer in error messages."""
        reward = self.config.reward
        return scorer_name(reward, data_source) if self.custom is None else custom_name(reward, self.custom)

    def select_scorer(self, data_source: str) -> tuple[Callable[..., Any], dict[str, Any]]:
        """The function and its settings; without `reward.scorer`, the data source names the scorer."""
        if self.custom is not None:
            return self.custom, {}
        return resolve(self.config.reward.get("scorer") or data_source, self._kwargs())

    def _kwargs(self) -> dict[str, Any]:
        return plain_settings(self.config.reward.get("scorer_kwargs"))  # the reference's section has none

    def arguments(self, data: DataProto) -> dict[str, Any]:
        """Arguments of every scorer for a sample. The data set's row is not changed."""
        if len(data) != 1:
            raise ValueError(f"a reward manager scores one sample at a time, and got {len(data)}")
        row = data[0].non_tensor_batch
        image = self._pixels(data.batch["responses"][0], validate=bool(data.meta_info.get("validate")))
        of_loop = {"num_turns": row.get("__num_turns__"), "rollout_reward_scores": row.get("reward_scores", {})}
        return {
            "data_source": row["data_source"],
            "solution_image": image,
            "ground_truth": row["reward_model"]["ground_truth"],
            "extra_info": {**(row.get("extra_info") or {}), **(row.get("tool_extra_fields") or {}), **of_loop},
        }

    def _pixels(self, response: torch.Tensor, *, validate: bool) -> torch.Tensor:
        """Pixels as uint8, or latents, as the settings request them from the engine.

        Raises:
            ValueError: the sample has another dtype.
        """
        requested = self._requested(validate=validate)
        if requested["output_type"] in ("latent", BOTH):
            if not response.is_floating_point():
                raise ValueError(f"Expected floating-point latent responses, got {response.dtype}.")
            return response
        dtype = requested.get("pixel_dtype", "uint8")
        if response.dtype != getattr(torch, dtype):
            raise ValueError(
                f"Expected {dtype} pixel responses for output_type={requested['output_type']!r}, got {response.dtype}."
            )
        return as_pixels(response)

    def _requested(self, *, validate: bool) -> dict[str, Any]:
        """Sampling parameters of the samples, read once: OmegaConf parses a value at each access."""
        if validate not in self._sampling:
            groups = ("pipeline", "val_kwargs.pipeline") if validate else ("pipeline",)
            requested: dict[str, Any] = {"output_type": "image"}
            for group in groups:
                requested |= OmegaConf.select(self.config, f"actor_rollout_ref.rollout.{group}") or {}
            self._sampling[validate] = requested
        return self._sampling[validate]

    def queue(self, key: str, scorer: Callable[..., Any], settings: Mapping[str, Any]) -> ScoringQueue:
        """The queue of a scorer, created at the first use of `key`; calls get the extra arguments it accepts."""
        if key not in self._queues:
            known = parameters_of(scorer)
            extra = {name: value for name, value in self.offered.items() if name in known}
            reward = self.config.reward
            self._queues[key] = ScoringQueue(
                scorer,
                {**settings, **extra},
                batch_size=int(reward.get("batch_size", BATCH_SIZE)),
                deadline_seconds=float(reward.get("deadline_seconds", DEADLINE_SECONDS)),
                running=nullcontext if self.deaths is None else partial(self.deaths.running, key),
            )
        return self._queues[key]

    @classmethod
    @override
    def assemble_rm_scores(cls, data: DataProto, scores: list[float]) -> torch.Tensor:
        """One score per sample, float32 [B, 1]."""
        return torch.tensor(scores, dtype=torch.float32).unsqueeze(-1)


def plain_settings(section: Any) -> dict[str, Any]:
    """A section of the settings as dicts and lists, which scorers expect; empty for None."""
    plain: dict[str, Any] = OmegaConf.to_container(section, resolve=True) if OmegaConf.is_config(section) else section
    return dict(plain or {})


def group_of(data: DataProto) -> Group | None:
    """The group of a sample in the trainer's batch; None where agent loops have samples scored one by one."""
    (group,) = data.non_tensor_batch.get(GROUP_COLUMN, [None])
    return group


def _scores_texts(function: Callable[..., Any] | None) -> bool:
    """Whether a function, or the one that a `partial` calls, is one of verl's scorers of texts."""
    inner = function.func if isinstance(function, partial) else function
    return str(getattr(inner, "__module__", "")).startswith("verl.utils.reward_score")
