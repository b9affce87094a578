"""Patch: the engine does not begin a batch while requests of the same call of the server are still on their way.

Fault: `RequestScheduler` (vllm_omni/diffusion/sched/request_scheduler.py) begins a batch that is not full as soon as no
request came for 50 ms. On a busy machine, requests that were made together arrive further apart than that.
Remove when: a diffusion stage takes the requests of a batch in one call, or is told their number.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from verl_omni.compat.versions import require

TESTED = frozenset({"0.30.0"})
CALL = "server_call"  # sampling parameter: the id of a request's call, and whether it is the last request of the call


def apply() -> None:
    """Let the scheduler wait for the last request of each call that has requests waiting. Safe to repeat."""
    require("vllm-omni", TESTED, "whole_batches")
    from vllm_omni.diffusion.sched.request_scheduler import RequestScheduler

    should_end = RequestScheduler.should_end_admission_wait
    if hasattr(should_end, "for_whole_batches"):
        return

    def should_end_for_whole_batches(self: Any, decision: Any, *, now: float, stable_since: float) -> bool:
        if self.num_waiting_requests() >= decision.max_batch:
            return True
        longest_pause = self.od_config.request_batch_max_wait_ms / 1000
        if now - stable_since < longest_pause and is_incomplete(_extra_arguments(self)):
            return False
        ended: bool = should_end(self, decision, now=now, stable_since=stable_since)
        return ended

    should_end_for_whole_batches.for_whole_batches = True  # type: ignore[attr-defined]
    RequestScheduler.should_end_admission_wait = should_end_for_whole_batches


def call_params(call: str, size: int) -> list[dict[str, Any]]:
    """Sampling parameters to add to those of the requests of a call, in the order in which they are sent."""
    return [{CALL: (call, number == size - 1)} for number in range(size)]


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


def _extra_arguments(scheduler: Any) -> list[Any]:
    states = [scheduler._request_states.get(request_id) for request_id in list(scheduler._waiting)]
    return [state.req.sampling_params.extra_args for state in states if state is not None]
