"""Reward workers of a run: verl's, and scoring of a whole batch by a judge that sleeps between batches."""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import ray
from omegaconf import DictConfig
from ray.exceptions import RayActorError
from tensordict import TensorDict
from typing_extensions import override
from verl import DataProto
from verl.experimental.reward_loop.reward_loop import RewardLoopWorker
from verl.single_controller.ray import RayResourcePool
from verl.trainer.ppo.reward import resolve_reward_manager_cls
from verl.utils.device import get_device_name

from verl_omni.agent_loop.batching import check_reward_fields, reward_columns
from verl_omni.agent_loop.rows import run_rows, short_prompt
from verl_omni.agent_loop.score_requests import UNSCORED, UnscoredSamples
from verl_omni.reward_loop.models import clip_model
from verl_omni.reward_loop.reward_manager.visual import GROUP_COLUMN, VisualRewardManager
from verl_omni.reward_loop.rewards.python import package_of
from verl_omni.reward_loop.scorer_deaths import RESTARTS, ScorerDeaths
from verl_omni.reward_loop.scorer_names import lost_worker_text
from verl_omni.reward_loop.scorer_results import FAILURE, failure_of
from verl_omni.trainer.replicas.actor_nodes import PinnedRewardLoopManager
from verl_omni.trainer.rewards.scorer_processes import ScorerProcesses
from verl_omni.trainer.settings import judge_settings, scorer_devices
from verl_omni.utils.columns import objects
from verl_omni.utils.root_cause import sendable

if TYPE_CHECKING:
    from verl_omni.trainer.replicas.replica_pool import ReplicaPool
    from verl_omni.trainer.rewards.judge_members import JudgeMembers
    from verl_omni.trainer.rewards.judge_servers import JudgeServers  # imports vLLM's server

STOP_SECONDS = 10.0  # timeout for reward workers to remove their files


class RewardWorker(RewardLoopWorker):  # type: ignore[misc]
    """verl's worker. Its own asks a judge's classification route where there is no custom function.

    Ray starts it again if its process ends, and repeats the calls that it had.
    """

    deaths: ScorerDeaths | None = None  # None outside of an actor

    @override
    def _init_reward_fn(self) -> None:
        """Make the reward manager; the file of the user's function is loaded by this package's loader.

        Raises:
            ValueError: as of `package_of`; other errors inside the file are not translated.
        """
        self._make_reward_manager()
        actor = ray.get_runtime_context().get_actor_id() if ray.is_initialized() else None
        if actor is not None and isinstance(self.reward_manager, VisualRewardManager):
            self.deaths = ScorerDeaths(Path(tempfile.gettempdir()) / f"reward-worker-{actor}")
            self.reward_manager.deaths = self.deaths

    def _make_reward_manager(self) -> None:
        function = self.config.reward.custom_reward_function
        if (path := function.path) is None:
            super()._init_reward_fn()
            return
        function.path = package_of(str(path), str(function.name))
        try:
            super()._init_reward_fn()
        finally:
            function.path = path  # errors name it

    @override
    async def compute_score(self, data: DataProto) -> dict[str, Any]:
        """The score of one sample, from the reward manager."""
        score: dict[str, Any] = await self.reward_manager.run_single(data)
        return score

    async def score_samples(self, samples: UnscoredSamples) -> list[Any]:
        """The scores of several samples; in the place of a score, the exception that the reward manager raised."""
        return await asyncio.gather(*map(self._score_or_error, samples.rows()))

    async def _score_or_error(self, row: DataProto) -> Any:
        try:
            return await self.compute_score(row)
        except Exception as error:  # noqa: BLE001  raised where the sample is scored
            return sendable(error)

    async def rest(self) -> None:
        """Free the accelerator that scorers share with the trainer, until they score again."""
        await asyncio.to_thread(clip_model.rest)

    async def forget_deaths(self) -> None:
        """Remove the files of this worker, at the end of a run."""
        if self.deaths is not None:
            self.deaths.remove()

    @override
    async def compute_score_batch(self, data: DataProto) -> list[dict[str, Any]]:
        """The scores of samples, in their order; those in the object store are loaded. An error cancels the others.

        Raises:
            SampleFailed: the reward manager raised an error; the message has the sample's prompt.
        """
        prompts = data.non_tensor_batch.get("raw_prompt", [None] * len(data))

        async def scored(row: int) -> dict[str, Any]:
            return await self.compute_score(await with_sample(data[row : row + 1]))

        return await run_rows(
            len(data),
            scored,
            lambda row: f"scoring a sample (prompt {short_prompt(prompts[row])})",
        )


async def with_sample(row: DataProto) -> DataProto:
    """A row with its sample: the tensors of the reference in its column `unscored`, if it has one."""
    columns = dict(row.non_tensor_batch)
    if (references := columns.pop(UNSCORED, None)) is None:
        return row
    (reference,) = references
    return DataProto(TensorDict(await reference, batch_size=1), columns, row.meta_info)


class RewardWorkers(PinnedRewardLoopManager):
    """verl's manager of reward workers.

    Args:
        judge: its router's address reaches the scorers.
        pool: the trainer's accelerators, which scorers may share.
    """

    def __init__(self, config: DictConfig, judge: JudgeServers | None, pool: RayResourcePool | None = None) -> None:
        # Does not call the parent's constructor, which would start another judge.
        self.config = config
        self.judge = judge
        self.scores_late = scorer_devices.scores_late(config)
        if scorer_devices.sharing(config.reward):
            self.shared_pool = pool
            self.config = scorer_devices.resolved(config, str(get_device_name()))
        self.reward_model_manager = judge
        self.reward_router_address = None if judge is None else judge.address
        again = {"max_restarts": RESTARTS, "max_task_retries": RESTARTS}
        self.reward_loop_workers_class = ray.remote(**again)(RewardWorker)
        self.reward_manager_cls = resolve_reward_manager_cls(config)
        self.scorer_processes = ScorerProcesses(config, self.reward_router_address)
        self._init_reward_loop_workers()

    @property
    @override
    def reward_loop_worker_handles(self) -> list[Any] | None:
        """Workers that score samples while others are generated; None if they need the engines' accelerators."""
        return None if self.scores_late else self.reward_loop_workers

    @override
    def compute_rm_score(self, data: DataProto) -> DataProto:
        """Score generated samples, with the judge and the scorers on the trainer's accelerators, if there are any.

        Returns:
            `rm_scores` [B, 1], NaN where a sample could not be scored, the column `scoring_failure`, and the scorers'
            further numbers in `meta_info["reward_extra_keys"]`.

        Raises:
            TimeoutError: the process of a reward worker does not respond within `reward.deadline_seconds`.
            RuntimeError: the process of a reward worker has ended, and was not started again.
            RayTaskError: the reward manager raised an error; the message has the sample's prompt.
            ValueError: the scorer returned a field with the name of a column that training reads.
        """
        if self.judge is not None:
            self.judge.wake_up()
        groups = [str(group) for group in data.non_tensor_batch["uid"]]
        sizes = Counter(groups)
        data.non_tensor_batch[GROUP_COLUMN] = objects([(group, sizes[group]) for group in groups])
        parts = parts_of_groups(groups, len(self.reward_loop_workers))
        replies = {
            worker.compute_score_batch.remote(data.select_idxs(part)): worker
            for part, worker in zip(parts, self.reward_loop_workers, strict=False)
        }
        self._wait(replies)
        by_row = {
            row: result
            for rows, part in zip(parts, ray.get(list(replies)), strict=True)
            for row, result in zip(rows, part, strict=True)
        }
        results = [by_row[row] for row in range(len(data))]
        if self.judge is not None:
            self.judge.sleep()
        if self.shared_pool is not None:
            resting = [worker.rest.remote() for worker in self.reward_loop_workers]
            ray.get(resting, timeout=float(self.config.reward.deadline_seconds))
        return self.collected(self.reward_manager_cls, data, results)

    @staticmethod
    def collected(manager: Any, data: DataProto, found: Sequence[Mapping[str, Any]]) -> DataProto:
        """PURE: the results of reward workers for each sample, as a batch.

        Raises:
            ValueError: as of `compute_rm_score`.
        """
        extras = [result["reward_extra_info"] for result in found]
        for extra in extras:
            check_reward_fields(extra)
        reported = reward_columns(extras)
        failures = [failure_of(result["reward_score"], result.get(FAILURE)) for result in found]
        return DataProto.from_dict(
            tensors={"rm_scores": manager.assemble_rm_scores(data, [result["reward_score"] for result in found])},
            non_tensors={**reported, FAILURE: objects(failures)},
            meta_info={"reward_extra_keys": list(reported)},
        )

    @property
    def judge_pool(self) -> ReplicaPool[JudgeMembers] | None:
        """The pool that replaces lost replicas of the judge; None if there is none."""
        return None if self.judge is None else self.judge.pool

    def stop(self) -> None:
        """Stop the judge, if there is one, and remove the files of the reward workers."""
        if self.judge is not None:
            self.judge.stop()
        self.scorer_processes.stop(STOP_SECONDS)
        forgetting = [worker.forget_deaths.remote() for worker in self.reward_loop_workers]
        ray.wait(forgetting, num_returns=len(forgetting), timeout=STOP_SECONDS)

    def _wait(self, replies: dict[Any, Any]) -> None:
        """Wait for all replies, or for the first failure. A worker's own deadline limits each call of a scorer."""
        seconds = float(self.config.reward.deadline_seconds)
        waiting = list(replies)
        while waiting:
            ended, waiting = ray.wait(waiting, timeout=seconds)
            for reply in ended:
                try:
                    ray.get(reply)
                except RayActorError as error:
                    number = self.reward_loop_workers.index(replies[reply])
                    raise RuntimeError(lost_worker_text(number, self.config.reward, error)) from error
            alive = {replies[reply].__ray_ready__.remote(): replies[reply] for reply in waiting}
            if not ended and ray.wait(list(alive), num_returns=len(alive), timeout=seconds)[1]:
                raise TimeoutError(f"a reward worker did not respond within {seconds:g} s (reward.deadline_seconds)")


def parts_of_groups(groups: Sequence[str], workers: int) -> list[list[int]]:
    """PURE: the rows of at most `workers` parts of a batch; all rows of a group are in one part."""
    rows: dict[str, list[int]] = {}
    for row, group in enumerate(groups):
        rows.setdefault(group, []).append(row)
    names = np.array_split(np.array(list(rows), dtype=object), min(len(rows), workers))
    return [[row for name in part for row in rows[name]] for part in names]


def start_reward_workers(config: DictConfig, pool: Any, report_phase: Callable[[str], None]) -> RewardWorkers:
    """Start the judge, if there is one, and the reward workers.

    Args:
        pool: the trainer's accelerators.
    """
    model = config.reward.reward_model
    if not model.enable:
        return RewardWorkers(config, None, pool)
    from verl_omni.trainer.rewards.judge_servers import JudgeServers

    report_phase(f"starting the judge {model.model_path} ({judge_settings.describe(config)})")
    return RewardWorkers(config, JudgeServers(config, pool), pool)
