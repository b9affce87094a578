"""Samples of `DiffusionAgentLoopWorker` on their way to the reward workers."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorUnavailableError

from verl_omni.agent_loop.rows import SampleFailed
from verl_omni.reward_loop.scorer_results import ScoringFailure, unscored

pytestmark = pytest.mark.slow  # reads a model and all settings for each


@pytest.mark.parametrize("name", ["uid", "__sample__", "global_steps", "__num_turns__"])
async def test_a_scorer_s_field_may_not_replace_a_column_that_training_reads(
    worker: Any, batch: Any, name: str, rewards: Any
) -> None:
    loop_worker = worker(rewards=[rewards(lambda pixel: {name: "x"})])
    with pytest.raises(SampleFailed, match=rf"the scorer returned the field '{name}', and the batch has a column"):
        await loop_worker.generate_sequences(batch(["a"], uid=["1"]))


class Silent:
    """A call that is never answered."""

    async def remote(self, *given: Any) -> Any:
        await asyncio.Event().wait()


async def test_a_reward_worker_that_does_not_respond_is_named(worker: Any, batch: Any) -> None:
    stopped = SimpleNamespace(compute_score=Silent(), __ray_ready__=Silent())
    loop_worker = worker("reward.deadline_seconds=0.05", rewards=[stopped])
    with pytest.raises(SampleFailed, match=r"reward worker 0 did not respond within 0\.05 s \(reward\.deadline_sec"):
        await loop_worker.generate_sequences(batch(["a"]))


async def test_a_reward_worker_with_a_long_queue_is_not_treated_as_stopped(
    worker: Any, batch: Any, rewards: Any
) -> None:
    """Far beyond the deadline: the worker answers that it is alive, and its score arrives after five times."""
    alive: list[int] = []
    scored = asyncio.Event()

    class Busy(rewards):
        async def remote(self, data: Any) -> dict[str, Any]:
            await scored.wait()
            return await super().remote(data)

    class Ready:
        async def remote(self) -> bool:
            alive.append(1)
            if len(alive) == 5:
                scored.set()
            return True

    busy = Busy()
    busy.__ray_ready__ = Ready()
    output = await worker("reward.deadline_seconds=0.01", rewards=[busy]).generate_sequences(batch(["a"]))
    assert output.batch["rm_scores"].tolist() == [[0.0]] and len(alive) >= 5


async def test_a_row_that_is_being_scored_leaves_room_for_another_in_the_engine(
    worker: Any, batch: Any, engine: Any, rewards: Any
) -> None:
    all_generated = asyncio.Event()

    class Counting(engine):
        in_flight = 0
        most = 0

        async def generate(self, request_id: str, **request: Any) -> Any:
            self.in_flight += 1
            self.most = max(self.most, self.in_flight)
            output = await super().generate(request_id, **request)
            self.in_flight -= 1
            if len(self.asked) == 5:
                all_generated.set()
            return output

    class Slow(rewards):
        async def remote(self, data: Any) -> dict[str, Any]:
            await all_generated.wait()  # no score before the last sample is generated
            return await super().remote(data)

    loop_worker = worker("actor_rollout_ref.rollout.max_concurrent_requests=2", engine=Counting(), rewards=[Slow()])
    async with asyncio.timeout(60):
        output = await loop_worker.generate_sequences(batch(["a"] * 5))
    assert output.batch["rm_scores"].flatten().tolist() == [0, 1, 2, 3, 4]
    assert loop_worker.server_manager.most == 2


async def test_a_worker_counts_the_samples_that_are_not_generated_yet(worker: Any, batch: Any, engine: Any) -> None:
    queued: list[int] = []

    class Counting(engine):
        async def generate(self, request_id: str, **request: Any) -> Any:
            queued.append(await loop_worker.queued_samples())
            return await super().generate(request_id, **request)

    loop_worker = worker("actor_rollout_ref.rollout.max_concurrent_requests=1", engine=Counting())
    await loop_worker.generate_sequences(batch(["a"] * 5))
    assert queued[1:] == [4, 3, 2, 1], "those in generation, and those that wait; the first begins before others do"
    assert await loop_worker.queued_samples() == 0


async def test_a_sample_goes_to_the_reward_worker_with_the_fewest_unscored(
    worker: Any, batch: Any, engine: Any, rewards: Any
) -> None:
    others_scored = asyncio.Event()

    def sent(made: Any) -> Mapping[int, int]:
        return made._score_requests.sent if made._score_requests else Counter()

    class Slow(rewards):
        async def remote(self, data: Any) -> dict[str, Any]:
            await others_scored.wait()
            return await super().remote(data)

    class Quick(rewards):
        async def remote(self, data: Any) -> dict[str, Any]:
            result = await super().remote(data)
            if len(self.given) == 3:
                others_scored.set()
            return result

    class Patient(engine):
        async def generate(self, request_id: str, **request: Any) -> Any:
            # The earlier samples have reached the workers, and the second worker is free again.
            while sent(loop_worker)[0] + len(handles[1].given) < len(self.asked) or sent(loop_worker)[1]:
                await asyncio.sleep(0)
            return await super().generate(request_id, **request)

    handles = [Slow(), Quick()]
    loop_worker = worker("actor_rollout_ref.rollout.max_concurrent_requests=1", engine=Patient(), rewards=handles)
    async with asyncio.timeout(60):
        await loop_worker.generate_sequences(batch(["a"] * 4))
    assert [len(handle.given) for handle in handles] == [1, 3]


async def test_a_reward_worker_that_is_gone_is_named_also_before_ray_knows_that_it_died(
    worker: Any, batch: Any, rewards: Any
) -> None:
    class Gone(rewards):
        async def remote(self, data: Any) -> dict[str, Any]:
            raise ActorUnavailableError("Socket closed", None)

    with pytest.raises(
        SampleFailed, match=r"reward worker 0 is gone: ActorUnavailableError: .*Socket closed.* \(color\)"
    ):
        await worker("reward.scorer=color", rewards=[Gone()]).generate_sequences(batch(["a"]))


async def test_responses_are_dropped_when_only_scores_are_requested(worker: Any, batch: Any, rewards: Any) -> None:
    scorer = rewards()
    rows = batch(["a", "b"], {"global_steps": 3, "carry_responses": False})
    output = await worker(rewards=[scorer]).generate_sequences(rows)
    assert [tuple(data.batch["responses"].shape) for data in scorer.given] == [(1, 3, 2, 2)] * 2, "they were scored"
    assert "responses" not in output.batch and len(output) == 2
    assert output.batch["rm_scores"].tolist() == [[0.0], [1.0]]
    assert output.batch["rollout_log_probs"].shape == (2, 4)


async def test_unscored_responses_cannot_be_dropped(worker: Any, batch: Any) -> None:
    with pytest.raises(SampleFailed, match="carry_responses is false, so each sample needs a score"):
        await worker().generate_sequences(batch(["a"], {"global_steps": 3, "carry_responses": False}))


@pytest.mark.parametrize("limit", [0, None])
def test_a_worker_refuses_a_limit_that_is_no_positive_number(worker: Any, limit: int | None) -> None:
    loop_worker = worker()
    loop_worker.config.actor_rollout_ref.rollout.max_concurrent_requests = limit
    with pytest.raises(ValueError, match=f"max_concurrent_requests must be positive: {limit}"):
        type(loop_worker)(loop_worker.config, None)


class Judge:
    """A reward worker that gives no rating for the samples 1 and 3."""

    def __init__(self, rewards: Any, *, required: bool = True) -> None:
        self.handle = rewards()
        self.required = required
        self.compute_score = self

    async def remote(self, data: Any) -> dict[str, Any]:
        pixel = int(data.batch["responses"].flatten()[0])
        if pixel in (1, 3):
            return unscored(ScoringFailure(f"scorer judge failed: no rating of {pixel}", self.required))
        result: dict[str, Any] = await self.handle.remote(data)
        return result


async def test_more_of_them_than_are_allowed_end_the_batch_with_the_error_of_one(
    worker: Any, batch: Any, rewards: Any
) -> None:
    message = (
        r"TooManyUnscored: scorer judge failed: no rating of [13]\. 2 samples have no score, and reward\.max_failed"
    )
    loop_worker = worker(rewards=[Judge(rewards)])
    with pytest.raises(SampleFailed, match=message):
        await loop_worker.generate_sequences(batch(["a"] * 5, {"global_steps": 3, "failures_allowed": 1}))
    with pytest.raises(SampleFailed, match=r"1 sample has no score, and reward\.max_failed_share allows 0"):
        await worker(rewards=[Judge(rewards)]).generate_sequences(batch(["a"] * 5))
    optional = worker(rewards=[Judge(rewards, required=False)])
    output = await optional.generate_sequences(batch(["a"] * 5))
    assert int(output.batch["rm_scores"].isnan().sum()) == 2
