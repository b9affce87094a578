"""Sender and workers run together: if one fails, the other ends, and the cause is raised."""

import asyncio
import threading
from typing import Any

import pytest

from verl_omni.weight_sync.errors import (
    BindingIncomplete,
    DeadlineExceeded,
    IncompleteUpdate,
    PeerDisconnected,
    PeerFailed,
    TransferCancelled,
    WeightSyncError,
)
from verl_omni.weight_sync.ipc import StopSignal
from verl_omni.workers.rollout.vllm_rollout.training_worker.server_adapter import check_confirmations, run_update

WORKER = {"tensors": 3, "bound": 2}


class Sender:
    """Returns or raises its result, or waits for the stop signal."""

    def __init__(self, result: Any = 3, *, waits: bool = False) -> None:
        self.result = result
        self.waits = waits
        self.stopped = False

    def __call__(self, stop: StopSignal) -> int:
        if self.waits:
            import select

            select.select([stop.fileno()], [], [])
            self.stopped = True
            raise TransferCancelled("stopped")
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


async def reply_with(result: Any) -> Any:
    if isinstance(result, Exception):
        raise result
    return result


async def test_a_worker_that_fails_before_it_connects_ends_the_sender_at_once() -> None:
    """Before the sender's own deadline."""
    sender = Sender(waits=True)
    failure = RuntimeError("update_weights_from_ipc failed in 1 of 1 workers: [BindingIncomplete] 2 of 2")
    with pytest.raises(BindingIncomplete, match="2 of 2"):
        await run_update(sender, reply_with(failure), 3600)
    assert sender.stopped


async def test_an_error_of_the_trainer_is_raised_as_the_cause() -> None:
    failure = RuntimeError("failed: [PeerFailed] the trainer aborted the update: KeyError: 'x'")
    with pytest.raises(KeyError):
        await run_update(Sender(KeyError("x")), reply_with(failure), 5)


@pytest.mark.parametrize(
    "sender_error", [PeerFailed("refused"), PeerDisconnected("killed"), DeadlineExceeded("silent")]
)
async def test_the_error_of_the_worker_is_raised_as_the_cause_of_the_senders(sender_error: Exception) -> None:
    with pytest.raises(IncompleteUpdate, match="twice"):
        await run_update(Sender(sender_error), reply_with(RuntimeError("[IncompleteUpdate] a arrived twice")), 5)
    with pytest.raises(WeightSyncError, match="worker died"):
        await run_update(Sender(sender_error), reply_with(RuntimeError("worker died")), 5)
    with pytest.raises(type(sender_error)):
        await run_update(Sender(sender_error), reply_with([WORKER]), 5)
    with pytest.raises(type(sender_error)):
        await run_update(Sender(sender_error), None, 5)


async def test_a_worker_that_never_replies_raises_at_the_deadline() -> None:
    with pytest.raises(DeadlineExceeded, match="did not reply"):
        await run_update(Sender(), asyncio.Event().wait(), 0.05)


async def test_cancelling_the_update_ends_the_sender_thread() -> None:
    sender = Sender(waits=True)
    started = threading.Event()

    def sending(stop: StopSignal) -> int:
        started.set()
        return sender(stop)

    update = asyncio.ensure_future(run_update(sending, asyncio.Event().wait(), 3600))
    await asyncio.to_thread(started.wait)
    update.cancel()
    with pytest.raises(asyncio.CancelledError):
        await update
    assert sender.stopped


@pytest.mark.parametrize(
    "wrong", [None, [], [{"tensors": 2, "bound": 2}], [WORKER, None], [{"tensors": 3, "bound": 0}]]
)
def test_an_update_succeeds_only_if_every_worker_applied_all_tensors(wrong: Any) -> None:
    """verl's own server discards the replies, which is not a confirmation."""
    assert check_confirmations(3, [WORKER, WORKER]) == WORKER
    with pytest.raises(IncompleteUpdate):
        check_confirmations(3, wrong)
