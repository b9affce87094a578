"""Manager: the results of several workers are joined as if one worker had run all rows."""

import asyncio
import re
import zlib
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from verl import DataProto
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics

from verl_omni.agent_loop.batching import OWN_COLUMNS, align, collate
from verl_omni.agent_loop.manager import DiffusionAgentLoopManager
from verl_omni.agent_loop.output import _InternalDiffusionAgentLoopOutput
from verl_omni.trainer.generation.sample_generation import training_requests
from verl_omni.trainer.generation.verl_batches import requests_to_verl

INFO = st.dictionaries(st.sampled_from(["acc", "iou", "note"]), st.floats(0, 1))
ROW = st.tuples(
    st.none() | st.floats(0, 1), INFO, st.dictionaries(st.sampled_from(["seen", "tool"]), st.integers(0, 9))
)


def row(score: float | None, info: dict[str, float], fields: dict[str, Any]) -> _InternalDiffusionAgentLoopOutput:
    return _InternalDiffusionAgentLoopOutput(
        prompt_ids=torch.ones(1, 2, dtype=torch.int64),
        response_diffusion_output=torch.zeros(1, 3, 2, 2, dtype=torch.uint8),
        reward_score=score,
        metrics=AgentLoopMetrics(),
        extra_fields={"reward_extra_info": info, "latents": torch.zeros(1, 2), **fields},
    )


def whole(rows: list[Any], cut: int) -> DataProto:
    """The rows, made by two workers, joined by verl."""
    parts = [collate([row(*values) for values in part], {}) for part in (rows[:cut], rows[cut:])]
    return DataProto.concat(align(parts))


@given(st.lists(ROW, min_size=2, max_size=6), st.data())
@settings(deadline=None)
def test_the_result_does_not_depend_on_the_split_over_workers(rows: list[Any], data: st.DataObject) -> None:
    unsplit = collate([row(*values) for values in rows], {})
    joined = whole(rows, data.draw(st.integers(1, len(rows) - 1)))
    assert set(joined.batch.keys()) == set(unsplit.batch.keys())
    assert joined.meta_info.get("reward_extra_keys") == unsplit.meta_info.get("reward_extra_keys")
    columns = {name: list(column) for name, column in joined.non_tensor_batch.items()}
    assert columns == {name: list(column) for name, column in unsplit.non_tensor_batch.items()}


def test_verls_manager_refuses_results_that_are_aligned_here() -> None:
    """Removable when verl joins workers whose samples report different keys."""
    rows = [(1.0, {"acc": 1.0}, {}), (0.5, {"acc": 0.5, "iou": 0.2}, {})]
    with pytest.raises(AssertionError, match=r"not present in the keys|Conflicting values"):
        DataProto.concat([collate([row(*values)], {}) for values in rows])


def test_a_field_that_a_worker_s_samples_lack_is_not_the_data_set_s_column() -> None:
    rows = [(1.0, {"acc": 1.0}, {}), (0.5, {"acc": 0.5, "tag": 0.2}, {})]
    parts = [collate([row(*values)], {"tag": np.array(["counting"], dtype=object)}) for values in rows]
    assert list(DataProto.concat(align(parts)).non_tensor_batch["tag"]) == [None, 0.2]


def manager_of(*workers: Any) -> DiffusionAgentLoopManager:
    config = OmegaConf.create({"actor_rollout_ref": {"rollout": {}, "model": {}}})
    manager = DiffusionAgentLoopManager(config, None)
    manager.agent_loop_workers = list(workers)
    return manager


def handle(generate: Any) -> Any:
    """A worker's handle."""
    return SimpleNamespace(generate_sequences=SimpleNamespace(remote=generate))


class Worker:
    """A worker's handle: makes rows of the prompts that it is given."""

    def __init__(self) -> None:
        self.generate_sequences = self

    async def remote(self, chunk: DataProto) -> DataProto:
        columns = chunk.non_tensor_batch
        rows = [row(score, info, {}) for score, info in zip(columns["score"], columns["info"], strict=True)]
        return collate(rows, {"priority": columns["priority"]})


def test_the_page_on_own_rewards_names_the_columns_that_no_field_of_a_scorer_may_replace() -> None:
    page = (Path(__file__).parents[3] / "docs" / "start" / "own-reward.md").read_text(encoding="utf-8")
    (named,) = re.findall(r"The keys (.+?) are\s+reserved", page, re.DOTALL)
    assert set(re.findall(r"`(\w+)`", named)) == OWN_COLUMNS


def test_the_manager_joins_results_and_timings_of_its_workers() -> None:
    manager = manager_of(Worker(), Worker())
    infos = np.array([{"acc": 1.0}, {"acc": 0.0}, {"acc": 1.0, "iou": 0.1}, {"acc": 1.0, "iou": 0.2}], dtype=object)
    prompts = DataProto(
        batch=None, non_tensor_batch={"score": np.arange(4, dtype=object), "info": infos}, meta_info={"global_steps": 1}
    )
    output = manager.generate_sequences(prompts)
    assert output.batch["rm_scores"].flatten().tolist() == [0, 1, 2, 3]
    assert list(output.non_tensor_batch["acc"]) == [1.0, 0.0, 1.0, 1.0]
    assert list(output.non_tensor_batch["priority"]) == [0, 1, 2, 3]
    assert output.meta_info["reward_extra_keys"] == ["acc", "iou"]
    timing = output.meta_info["timing"]
    for name in ("num_preempted", "generate_sequences", "tool_calls", "compute_score"):
        assert {f"agent_loop/{name}/{kind}" for kind in ("min", "max", "mean")} <= timing.keys()
        assert f"agent_loop/slowest/{name}" in timing
    assert "metrics" not in output.meta_info


class Call:
    """The reply of an actor, which may end before the caller waits for it."""

    def __init__(self) -> None:
        self.reply: Future[DataProto] = Future()

    def future(self) -> Future[DataProto]:
        return self.reply

    def __await__(self) -> Any:
        return asyncio.wrap_future(self.reply).__await__()


def test_batches_are_sent_at_once_and_received_one_after_the_other() -> None:
    calls: list[Call] = []

    def remote(chunk: DataProto) -> Call:
        calls.append(Call())
        return calls[-1]

    manager = manager_of(handle(remote))
    prompts = [DataProto(batch=None, non_tensor_batch={"score": np.full(1, n, dtype=object)}) for n in range(3)]
    sent = [manager.send(request) for request in prompts]
    assert len(calls) == 3
    for number in (1, 0):  # the second one ends first
        calls[number].reply.set_result(collate([row(float(number), {"acc": 1.0}, {})], {}))
    ended = [call.seconds for call in sent]
    assert ended[0] > ended[1] > 0 == ended[2]
    assert [manager.receive(call).batch["rm_scores"].item() for call in sent[:2]] == [0, 1]
    assert [call.seconds for call in sent] == ended, "until a call ends, not until the caller asks"
    manager.cancel = lambda call: call.reply.cancel()
    manager.abandon(sent[2:])
    assert calls[2].reply.cancelled()


NOISE = ("seed", "sde_noise_seed", "sde_window_seed")


@pytest.mark.slow
@pytest.mark.parametrize("same_noise", [False, True])
def test_images_do_not_depend_on_the_number_of_workers(
    worker: Any, engine: Any, rewards: Any, same_noise: bool
) -> None:
    """The engine's image is a function of prompt and seeds; 3 prompts of 3 samples are divided in the middle of one."""

    class Seeded(engine):  # type: ignore[misc]
        async def generate(self, request_id: str, **request: Any) -> Any:
            output = await super().generate(request_id, **request)
            asked = [request["prompt_ids"], *(request["sampling_params"].get(name) for name in NOISE)]
            pixel = zlib.crc32(repr(asked).encode()) % 256
            return output.model_copy(update={"diffusion_output": torch.full((3, 2, 2), pixel, dtype=torch.uint8)})

    texts = ("a red circle", "a cat", "a tree")
    rows = [{"raw_prompt": [{"role": "user", "content": text}], "data_source": text} for text in texts]
    batch = training_requests(rows, n=3, step=2, version=1, seed=5)

    settings = ("actor_rollout_ref.rollout.n=3", f"actor_rollout_ref.rollout.algo.init_same_noise={same_noise}")
    single_worker = worker(*settings, engine=Seeded(), rewards=[rewards()])

    def drawn(workers: int) -> DataProto:
        manager = manager_of(*[handle(single_worker.generate_sequences)] * workers)
        return manager.generate_sequences(requests_to_verl(batch))

    alone = drawn(1)
    assert list(alone.non_tensor_batch["data_source"]) == [text for text in texts for _ in range(3)]
    assert len(set(alone.batch["rm_scores"].flatten().tolist())) > 6, "samples differ"
    for workers in (2, 4, 9, 10):
        output = drawn(workers)
        assert torch.equal(output.batch["responses"], alone.batch["responses"]), workers
        assert torch.equal(output.batch["prompts"], alone.batch["prompts"])
        assert torch.equal(output.batch["rm_scores"], alone.batch["rm_scores"])


def test_when_a_worker_fails_the_others_write_nothing_any_more() -> None:
    """A batch that is generated again would otherwise share the engines with what is left of the failed one."""
    events: list[str] = []

    async def fail(chunk: DataProto) -> DataProto:
        await asyncio.sleep(0)
        raise RuntimeError("engine is gone")

    async def write(chunk: DataProto) -> DataProto:
        try:
            await asyncio.sleep(0.05)
            events.append("late write")
        finally:
            events.append("ended")
        return chunk

    async def generate() -> None:
        calls = [lambda chunk, run=run: asyncio.create_task(run(chunk)) for run in (write, fail, write)]
        manager = manager_of(*map(handle, calls))
        manager.cancel = asyncio.Task.cancel
        prompts = DataProto(batch=None, non_tensor_batch={"score": np.arange(3, dtype=object)}, meta_info={})
        with pytest.raises(RuntimeError, match="engine is gone"):
            await manager.generate_sequences(prompts)
        assert events == ["ended", "ended"], "before the error is raised"

    asyncio.run(generate())
