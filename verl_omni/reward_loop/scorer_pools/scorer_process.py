"""`ScorerProcess`: the Ray actor that runs one scorer in its own Python environment, on an accelerator or the CPU."""

import logging
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import ray

from verl_omni.reward_loop.scorer_deaths import ScorerDeaths
from verl_omni.reward_loop.scorer_parts import load_scorer
from verl_omni.reward_loop.scorer_results import error_text, part_result
from verl_omni.reward_loop.scorer_signature import parameters_of
from verl_omni.reward_loop.scoring_queue import Group, ScoringQueue
from verl_omni.utils.registry import import_modules

logger = logging.getLogger(__name__)
# Keys of a reply without a score.
ERROR = "error"  # the text of the scorer's error
ENDED = "ended"  # the text about its process, which ended too often


class ScorerProcess:
    """Scores samples with one scorer.

    Ray starts it again if its process ends, on another node if its node is gone, and repeats the calls that it had.

    Args:
        key, settings: the part of `reward.reward_functions`.
        offered: further arguments for scorers that have such parameters.
        modules: modules to import first, which may register scorers.
        batch_size: maximum number of samples in a call of a scorer that takes lists.
        deadline_seconds: timeout of a call.
        has_accelerator: whether the scorer's model runs on an accelerator; otherwise on the CPU.

    Raises:
        ValueError: the scorer does not exist, or does not take its settings.
    """

    def __init__(
        self,
        key: str,
        settings: Mapping[str, Any],
        offered: Mapping[str, Any],
        modules: Sequence[str],
        *,
        batch_size: int,
        deadline_seconds: float,
        has_accelerator: bool,
    ) -> None:
        import_modules(modules)
        scorer = load_scorer(key, settings, device=_device_name() if has_accelerator else "cpu")
        known = parameters_of(scorer.function)
        self._key = key
        actor = ray.get_runtime_context().get_actor_id()
        self._deaths = ScorerDeaths(Path(tempfile.gettempdir()) / f"scorer-{actor}")
        self._queue = ScoringQueue(
            scorer.function,
            {**scorer.settings, **{name: value for name, value in offered.items() if name in known}},
            batch_size=batch_size,
            deadline_seconds=deadline_seconds,
            running=partial(self._deaths.running, key),
        )

    async def score(self, sample: Mapping[str, Any], group: Group | None) -> dict[str, Any]:
        """The score of a sample.

        Returns:
            As of `part_result`; or ERROR or ENDED alone. The scorer's own exception may not load in another process.
        """
        if problem := self._deaths.problem(self._key):
            return {ENDED: problem}
        try:
            return part_result(await self._queue.score(sample, group))
        except Exception as error:
            logger.warning("the scorer %s failed; a sample has no score of it", self._key, exc_info=error)
            return {ERROR: error_text(error)}

    async def forget_deaths(self) -> None:
        """Remove the files of this process, at the end of a run."""
        self._deaths.remove()


def _device_name() -> str:
    from verl.utils.device import get_device_name

    return str(get_device_name())
