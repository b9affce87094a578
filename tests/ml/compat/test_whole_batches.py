"""The engine's scheduler waits for the whole call of a server."""

from types import SimpleNamespace
from typing import Any

import pytest

from verl_omni.compat import whole_batches

MAX_BATCH = 8
MAX_WAIT_MS = 250.0


@pytest.fixture
def scheduler(monkeypatch: pytest.MonkeyPatch) -> Any:
    """vLLM-Omni's scheduler with the patch, and a way to add waiting requests by their extra arguments."""
    from vllm_omni.diffusion.sched.base_scheduler import BaseScheduler
    from vllm_omni.diffusion.sched.request_scheduler import RequestScheduler

    monkeypatch.setattr(BaseScheduler, "_can_schedule_waiting", BaseScheduler._can_schedule_waiting)
    monkeypatch.setattr(RequestScheduler, "should_end_admission_wait", RequestScheduler.should_end_admission_wait)
    whole_batches.apply()
    whole_batches.apply()
    request_scheduler: Any = object.__new__(RequestScheduler)
    request_scheduler.od_config = SimpleNamespace(request_batch_max_wait_ms=MAX_WAIT_MS)
    request_scheduler.max_num_running_reqs = MAX_BATCH
    request_scheduler._waiting = []
    request_scheduler._running = []
    request_scheduler._request_states = {}
    return request_scheduler


def add(scheduler: Any, *requests: dict[str, Any] | None) -> None:
    for arguments in requests:
        name = f"r{len(scheduler._waiting)}"
        scheduler._waiting.append(name)
        sampling = SimpleNamespace(extra_args=arguments)
        scheduler._request_states[name] = SimpleNamespace(req=SimpleNamespace(sampling_params=sampling))


def ends(scheduler: Any, quiet: float) -> bool:
    """Whether the batch begins when no request came for `quiet` seconds."""
    decision = scheduler.get_admission_wait_decision(now=0.0)
    should_end: bool = scheduler.should_end_admission_wait(decision, now=quiet, stable_since=0.0)
    return should_end


def test_a_batch_begins_when_the_last_request_of_its_call_is_there(scheduler: Any) -> None:
    call = whole_batches.call_params("a", 5)
    add(scheduler, *call[:3])
    assert not ends(scheduler, 0.1), "without the patch it begins after 0.05 s"
    add(scheduler, *call[3:])
    assert ends(scheduler, 0.06)


def test_a_full_batch_begins_at_once(scheduler: Any) -> None:
    add(scheduler, *whole_batches.call_params("a", 50)[:MAX_BATCH])
    assert ends(scheduler, 0.0)


def test_requests_that_never_come_are_not_awaited_for_long(scheduler: Any) -> None:
    """Such as those that were aborted on their way."""
    add(scheduler, *whole_batches.call_params("a", 5)[:3])
    assert ends(scheduler, MAX_WAIT_MS / 1000)


@pytest.mark.parametrize("arguments", [None, {}, {"noise_level": 0.7}])
def test_requests_of_no_call_are_batched_as_before(scheduler: Any, arguments: Any) -> None:
    add(scheduler, arguments, arguments)
    assert not ends(scheduler, 0.04) and ends(scheduler, 0.06)


def part(number: int, size: int) -> list[dict[str, Any]]:
    return [{whole_batches.PART: (number, size)}] * size


def test_a_part_of_a_step_begins_as_soon_as_all_of_it_waits(scheduler: Any) -> None:
    first = part(0, 3)
    add(scheduler, *first[:2], *part(1, 3)[:2])
    assert not ends(scheduler, 0.0)
    scheduler._waiting.clear()
    add(scheduler, *first, *part(1, 3)[:1])
    assert ends(scheduler, 0.0)


def test_two_parts_of_a_step_are_two_batches(scheduler: Any) -> None:
    add(scheduler, *part(0, 2), *part(1, 2), None)
    states = list(scheduler._request_states.values())
    scheduler._diffusion_kv_manager = None
    scheduler._running_sampling_params_key = None
    for state in states:
        state.sampling_params_key = "the same for all"
    assert all(scheduler._can_schedule_waiting(state) for state in states), "nothing runs"
    scheduler._running = ["r0"]
    assert [scheduler._can_schedule_waiting(state) for state in states] == [True, True, False, False, False]
