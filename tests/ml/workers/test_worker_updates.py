"""One rank of a weight update and of a checkpoint, with fakes of the actor and of the sender."""

import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from verl_omni.weight_sync.errors import DeadlineExceeded, WeightSyncError

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]  # the worker's module takes long to import


class Sender:
    """`ServerAdapter` of replica 1, which fails at the given point; it reads two weights."""

    replica_rank = 1

    def __init__(self, failing: str) -> None:
        self.failing = failing
        self.casts: dict[str, int] = {}

    def _reach(self, point: str) -> None:
        if point == self.failing:
            raise DeadlineExceeded("no reply within 10 s")

    async def resume(self, tags: list[str]) -> None:
        self._reach(tags[0])

    async def update_weights(self, weights: Iterator[int], **options: Any) -> dict[str, Any]:
        next(weights), next(weights)
        self._reach("transfer")
        return {"tensors": 2, "casts": self.casts}


def worker(failing: str, gathered: list[int]) -> Any:
    from verl_omni.workers.engine_workers import DiffusionActorRolloutWorker

    class Rank(DiffusionActorRolloutWorker):
        world_size = 2

        def __init__(self) -> None:
            self._casts: dict[str, int] = {}  # and nothing of a Ray worker

    def weights(kind: str, adapter: str, dtype: torch.dtype | None) -> Iterator[int]:
        for number in range(5):
            gathered.append(number)  # a collective
            yield number

    rank = Rank()
    rank.rollout_config = SimpleNamespace(free_cache_engine=True, rollout_adapter="default", dtype="float32")
    rank.actor = SimpleNamespace(peft_config=lambda: None, weights=weights)
    rank.rollout = Sender(failing)
    return rank


@pytest.mark.parametrize("failing", ["weights", "transfer", "kv_cache"])
async def test_a_rank_whose_replica_fails_still_takes_part_in_every_gather(failing: str) -> None:
    gathered: list[int] = []
    words = r"version 7 did not reach replica 1: no reply within 10 s"
    with pytest.raises(DeadlineExceeded, match=words) as caught:
        await worker(failing, gathered).update_weights(global_steps=7)
    assert isinstance(caught.value, WeightSyncError)
    assert gathered == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("adapter", "kind", "dtype"), [(None, "full", torch.bfloat16), ({"r": 4}, "lora", None)])
def test_all_weights_leave_in_the_dtype_of_the_engine_and_an_adapter_in_its_own(
    adapter: Any, kind: str, dtype: torch.dtype | None
) -> None:
    asked: list[tuple[Any, ...]] = []
    rank = worker("", [])
    rank.rollout_config.dtype = "bfloat16"
    rank.actor = SimpleNamespace(peft_config=lambda: adapter, weights=lambda *given: asked.append(given))
    assert rank._policy_weights()[0] == adapter
    rank._sends_average = True
    rank._policy_weights()
    assert asked == [(kind, "default", dtype), (kind, "average", dtype)]


async def test_dtypes_of_the_engine_other_than_those_sent_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    # A library of vLLM's server, which other tests import, raises the level of all loggers.
    caplog.set_level(logging.WARNING, "verl_omni.workers.engine_workers")
    rank = worker("", [])
    rank.rollout.casts = {"bfloat16 to float32": 8}
    for version in (1, 2):
        await rank.update_weights(global_steps=version)
    (message,) = [record.getMessage() for record in caplog.records]
    assert message == "the engine casts weights sent in rollout.dtype=float32: {'bfloat16 to float32': 8}"


def test_a_rank_writes_a_checkpoint_in_the_background_and_reports_its_error(tmp_path: Path) -> None:
    from verl.single_controller.base.decorator import MAGIC_ATTR, Dispatch

    from verl_omni.workers.actor.background_write import BackgroundWrite

    writes = [(tmp_path / "state").touch, (tmp_path / "none" / "state").touch]
    rank = worker("nothing", [])
    rank._writing = BackgroundWrite()
    rank.actor = SimpleNamespace(stage=lambda folder: writes.pop(0))
    for method in (rank.start_checkpoint, rank.finish_checkpoint, rank.save_adapter):
        assert getattr(method, MAGIC_ATTR)["dispatch_mode"] is Dispatch.ONE_TO_ALL, "every rank writes its shards"
    rank.start_checkpoint(str(tmp_path))
    assert rank.finish_checkpoint(60.0) and (tmp_path / "state").exists()
    rank.start_checkpoint(str(tmp_path))
    with pytest.raises(FileNotFoundError):
        rank.finish_checkpoint(60.0)
