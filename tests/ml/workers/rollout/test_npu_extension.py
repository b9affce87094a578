"""Sleep on an Ascend NPU: the engine's real worker class, and a fake of its allocator's public interface."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]  # the engine's modules take half a minute to import

events: list[Any] = []


class CaMemAllocator:
    """Records its calls; accepts only the arguments of the real one."""

    instance: CaMemAllocator | None = None
    usage = 0

    @staticmethod
    def get_instance() -> CaMemAllocator:
        if CaMemAllocator.instance is None:
            CaMemAllocator.instance = CaMemAllocator()
        return CaMemAllocator.instance

    def get_current_usage(self) -> int:
        return self.usage

    @contextmanager
    def use_memory_pool(self, tag: str | None = None) -> Iterator[None]:
        events.append(("pool", tag))
        yield
        events.append(("pool ends", tag))

    def sleep(self, offload_tags: tuple[str, ...] | str | None = None) -> None:
        events.append(("sleep", offload_tags))

    def wake_up(self, tags: list[str] | None = None) -> None:
        events.append(("wake_up", tags))


class Ascend:
    """The engine's platform on an NPU."""

    def is_npu(self) -> bool:
        return True

    def synchronize(self) -> None:
        events.append("synchronize")

    def empty_cache(self) -> None:
        events.append("empty_cache")

    def get_free_memory(self, device: Any = None) -> int:
        return 0


class Pipeline(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)
        self.register_buffer("scale", torch.tensor([1.0, 2.0]))


@pytest.fixture
def ascend(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fakes of the platform and of vllm-ascend, until the test ends."""
    from verl_omni.workers.rollout.vllm_rollout.engine_worker import npu_extension

    names = ("vllm_ascend", "vllm_ascend.device_allocator", "vllm_ascend.device_allocator.camem")
    for name in names:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(sys.modules[names[-1]], "CaMemAllocator", CaMemAllocator, raising=False)
    monkeypatch.setattr(npu_extension, "current_omni_platform", Ascend())
    events.clear()
    yield
    CaMemAllocator.instance = None
    CaMemAllocator.usage = 0


@pytest.fixture
def worker(ascend: None) -> Any:
    """The class that the engine builds from the extension and its worker, without a model."""
    from vllm_omni.diffusion.worker.diffusion_worker import DiffusionWorker

    from verl_omni.workers.rollout.vllm_rollout.npu_utils import vLLMOmniNPUColocateWorkerExtension

    npu_worker: Any = object.__new__(type("Worker", (vLLMOmniNPUColocateWorkerExtension, DiffusionWorker), {}))
    npu_worker.od_config = SimpleNamespace(enable_sleep_mode=True)
    npu_worker.rank = 0
    npu_worker.stage_id = 0
    npu_worker.device = torch.device("cpu")
    npu_worker._sleep_saved_buffers = {}
    npu_worker.model_runner = SimpleNamespace(
        pipeline=Pipeline(), refresh_diffusion_kv_block_table_layout=lambda: events.append("kv layout")
    )
    return npu_worker


@pytest.mark.parametrize("tag", ["weights", "kv_cache"])
def test_loaded_memory_belongs_to_the_pool_of_its_tag(worker: Any, tag: str) -> None:
    with worker._maybe_get_memory_pool_context(tag):
        events.append("load")
    assert events == ["synchronize", ("pool", tag), "load", ("pool ends", tag)]


def test_without_sleep_mode_there_is_no_pool(worker: Any) -> None:
    worker.od_config.enable_sleep_mode = False
    with worker._maybe_get_memory_pool_context("weights"):
        pass
    assert events == []


def test_a_second_engine_in_the_process_is_refused(worker: Any) -> None:
    CaMemAllocator.usage = 1
    with pytest.raises(AssertionError, match="Sleep mode can only be used for one instance per process"):
        worker._maybe_get_memory_pool_context("weights")
    with worker._maybe_get_memory_pool_context("kv_cache"):
        pass


@pytest.mark.parametrize(("level", "kept"), [(1, ("weights",)), (2, ())])
def test_sleep_synchronizes_and_level_1_keeps_weights(worker: Any, level: int, kept: Any) -> None:
    assert worker.sleep(level) is True
    assert events == ["synchronize", ("sleep", kept), "empty_cache", "synchronize"]
    assert set(worker._sleep_saved_buffers) == ({"scale"} if level == 2 else set())


def test_buffers_are_restored_once_with_the_weights(worker: Any) -> None:
    buffer = worker.model_runner.pipeline.scale
    worker.sleep(level=2)
    buffer.zero_()
    assert worker.wake_up(tags=["kv_cache"]) is True
    assert buffer.tolist() == [0, 0], "its memory is not there yet"
    assert worker.wake_up(tags=["weights"]) is True
    assert buffer.tolist() == [1, 2]
    assert worker._sleep_saved_buffers == {}
    assert [event for event in events if "wake_up" in event or event == "kv layout"] == [
        ("wake_up", ["kv_cache"]),
        "kv layout",
        ("wake_up", ["weights"]),
    ]


def test_without_tags_everything_wakes(worker: Any) -> None:
    worker.sleep(level=2)
    worker.model_runner.pipeline.scale.zero_()
    worker.wake_up()
    assert ("wake_up", None) in events
    assert "kv layout" in events
    assert worker.model_runner.pipeline.scale.tolist() == [1, 2]


def test_the_engine_acknowledges_sleep_and_wake(worker: Any) -> None:
    slept = worker.handle_sleep_task({"task_id": "s", "level": 1})
    woken = worker.handle_wake_task({"task_id": "w", "tags": ["weights"]})
    assert [slept.status, woken.status] == ["SUCCESS", "SUCCESS"], (slept.error_msg, woken.error_msg)
    assert ("sleep", ("weights",)) in events
    assert ("wake_up", ["weights"]) in events


def test_other_devices_use_the_engines_own_worker() -> None:
    from verl_omni.workers.rollout.vllm_rollout.npu_utils import vLLMOmniNPUColocateWorkerExtension

    class Own:
        def _maybe_get_memory_pool_context(self, tag: str) -> Any:
            return ("pool", tag)

        def sleep(self, level: int = 1) -> Any:
            return ("sleep", level)

        def wake_up(self, tags: list[str] | None = None) -> Any:
            return ("wake_up", tags)

    other_worker: Any = object.__new__(type("Worker", (vLLMOmniNPUColocateWorkerExtension, Own), {}))
    assert other_worker._maybe_get_memory_pool_context("weights") == ("pool", "weights")
    assert other_worker.sleep(2) == ("sleep", 2)
    assert other_worker.wake_up(["weights"]) == ("wake_up", ["weights"])


def test_diffusers_does_not_empty_the_cache_inside_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    from diffusers.models import modeling_utils

    from verl_omni.compat import npu_empty_cache

    emptied: list[str] = []
    for kind in ("npu", "cuda"):
        device = SimpleNamespace(empty_cache=lambda kind=kind: emptied.append(kind))
        monkeypatch.setattr(torch, kind, device, raising=False)
    plain = modeling_utils.empty_device_cache
    with npu_empty_cache.apply():
        modeling_utils.empty_device_cache("npu")
        modeling_utils.empty_device_cache("cuda")
    assert emptied == ["cuda"]
    assert modeling_utils.empty_device_cache is plain
    modeling_utils.empty_device_cache("npu")
    assert emptied == ["cuda", "npu"]
