"""Patch: the engine's batches have the requests of whole calls of the server, and of one part of a step.

Fault: `RequestScheduler` (vllm_omni/diffusion/sched/request_scheduler.py) begins a batch that is not full as soon as
no request came for 50 ms. On a busy machine, requests that were made together arrive further apart than that. And it
puts the parts of a step that wait together into one batch, so that none is there before the others.
Remove when: a diffusion stage takes the requests of a batch in one call.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from verl_omni.compat.versions import require

TESTED = frozenset({"0.30.0"})
# Sampling parameters:
CALL = "server_call"  # the id of a request's call, and whether it is the last request of the call
PART = "step_part"  # number of a request's part of a training step, and its size; None: the step has no parts


def apply() -> None:
    """Let the scheduler wait for the last request of each call that has requests waiting, and keep parts apart.

    Safe to repeat.
    """
    require("vllm-omni", TESTED, "whole_batches")
    from vllm_omni.diffusion.sched.base_scheduler import BaseScheduler
    from vllm_omni.diffusion.sched.request_scheduler import RequestScheduler

    should_end = RequestScheduler.should_end_admission_wait
    if hasattr(should_end, "for_whole_batches"):
        return

    def should_end_for_whole_batches(self: Any, decision: Any, *, now: float, stable_since: float) -> bool:
        if self.num_waiting_requests() >= decision.max_batch:
            return True
        waiting = _extra_arguments(self, self._waiting)
        if begins_with_whole_part(waiting):
            return True
        longest_pause = self.od_config.request_batch_max_wait_ms / 1000
        if now - stable_since < longest_pause and is_incomplete(waiting):
            return False
        ended: bool = should_end(self, decision, now=now, stable_since=stable_since)
        return ended

    should_end_for_whole_batches.for_whole_batches = True  # type: ignore[attr-defined]
    RequestScheduler.should_end_admission_wait = should_end_for_whole_batches
    can_schedule = BaseScheduler._can_schedule_waiting

    def can_schedule_with_part(self: Any, state: Any) -> bool:
        part = part_of(state.req.sampling_params.extra_args)
        running = _extra_arguments(self, self._running[:1])
        return can_schedule(self, state) and all(part_of(arguments) == part for arguments in running)

    BaseScheduler._can_schedule_waiting = can_schedule_with_part


def part_of(arguments: Any) -> tuple[int, int] | None:
    """The part of a step that a request belongs to, and the number of its requests, from its `extra_args`."""
    part: tuple[int, int] | None = (arguments or {}).get(PART)
    return part


def call_params(call: str, size: int) -> list[dict[str, Any]]:
    """Additional sampling parameters for each request of a call, in the order in which the requests are sent."""
    return [{CALL: (call, number == size - 1)} for number in range(size)]


def begins_with_whole_part(waiting: Sequence[Any]) -> bool:
    """PURE: whether all requests of the part that is the first to be generated are there.

    Args:
        waiting: `extra_args` of the requests that wait.
    """
    parts = [part_of(arguments) for arguments in waiting]
    first = parts[0] if parts else None
    return first is not None and parts.count(first) >= first[1]


def is_incomplete(waiting: Iterable[Any]) -> bool:
    """PURE: whether the last request of a call is missing.

    Args:
        waiting: `extra_args` of the requests that wait.
    """
    complete: dict[str, bool] = {}
    for arguments in waiting:
        if (mark := (arguments or {}).get(CALL)) is not None:
            call, is_last = mark
            complete[call] = is_last or complete.get(call, False)
    return not all(complete.values())


def _extra_arguments(scheduler: Any, requests: Iterable[str]) -> list[Any]:
    states = [scheduler._request_states.get(request_id) for request_id in list(requests)]
    return [state.req.sampling_params.extra_args for state in states if state is not None]
