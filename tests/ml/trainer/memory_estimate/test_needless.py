"""The search for offloading and sleep that a run does not need."""

import queue
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.ml import smallest_job
from tests.ml.trainer.memory_estimate.small_jobs import ACTOR, job
from verl_omni.trainer import main_diffusion, startup
from verl_omni.trainer.data import prompt_dataset, prompt_warnings
from verl_omni.trainer.memory_estimate import needless
from verl_omni.trainer.run import trackers
from verl_omni.trainer.stack import Cluster

OFFLOAD = f"{ACTOR}.fsdp_config.param_offload"
LARGE = 80 << 30
SECONDS = 300


@pytest.mark.slow
def test_a_run_on_accelerators_is_told_what_it_does_not_need(tiny: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = job(tiny, f"{OFFLOAD}=true")
    told = queue.Queue[str]()
    end = needless.search(config, LARGE, told.put)
    assert f"{OFFLOAD}=false (saves: copies to host memory in each step)" in told.get(timeout=SECONDS)
    end()

    needless.search(config, LARGE, told.put)()
    assert told.empty() and not caplog.messages, "a search that is ended says nothing"

    config.actor_rollout_ref.model.path = str(tiny / "missing")
    end = needless.search(config, LARGE, told.put)
    deadline = time.monotonic() + SECONDS
    while not caplog.messages and time.monotonic() < deadline:
        time.sleep(0.1)
    end()
    assert "missing" in caplog.text and told.empty()


def test_a_run_that_needs_its_offloading_is_told_nothing(tiny: Path) -> None:
    config = job(tiny, f"{OFFLOAD}=true")
    assert OFFLOAD in needless.describe(config, LARGE)
    assert needless.describe(config, 1 << 20) == ""


@pytest.mark.parametrize(("memory", "shared"), [(LARGE, False), (LARGE, True), (None, False)])
def test_only_a_run_whose_accelerators_are_known_and_its_own_is_searched(
    memory: int | None, shared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`train_on`, whose run ends where it would open its trackers."""

    class Reached(Exception):
        pass

    def reached(*_: Any, **__: Any) -> Any:
        raise Reached

    def search(config: Any, capacity: int, report: Callable[[str], None]) -> Callable[[], None]:
        searched.append(capacity)
        report("param_offload=false")
        return lambda: searched.append(0)

    searched = list[int]()
    events = list[dict[str, Any]]()
    config = smallest_job.load()
    config.reward.reward_model.enable = shared
    stack = SimpleNamespace(device_memory=memory, stop=lambda: None)
    monkeypatch.setattr(prompt_dataset, "load_checked", lambda _: ([], None))
    monkeypatch.setattr(prompt_warnings, "describe_truncated", lambda *_: ())
    monkeypatch.setattr(prompt_warnings, "describe_unread", lambda *_: ())
    monkeypatch.setattr(startup, "start_actors", lambda *_: stack)
    monkeypatch.setattr(needless, "search", search)
    monkeypatch.setattr(trackers, "open_trackers", reached)
    folder = SimpleNamespace(
        path=tmp_path, metrics=list, event=lambda event, **fields: events.append({"event": event, **fields})
    )
    run: Any = SimpleNamespace(config=config, folder=folder)
    with pytest.raises(Reached), ExitStack() as resources:
        main_diffusion.train_on(Cluster(lambda: None), run, resources, lambda _: None, lambda: False)
    told = {"event": "warning", "reason": "OffloadingNotNeeded", "message": "param_offload=false"}
    assert searched == ([LARGE, 0] if memory and not shared else [])
    assert (told in events) == bool(searched)
