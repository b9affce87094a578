"""Sender and workers side by side: whoever fails, the other is freed, and the cause is what is raised."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from verl_omni.weight_sync.ends import both_ends, confirmed
from verl_omni.weight_sync.errors import (
    BindingIncomplete,
    CalledOff,
    DeadlineExceeded,
    IncompleteUpdate,
    PeerFailed,
    PeerGone,
    WeightSyncError,
)
from verl_omni.weight_sync.transfer import Stop

WORKER = {"tensors": 3, "bound": 2}


class Sender:
    """Waits for a permission or for its stop; then returns or raises."""

    def __init__(self, result: Any = 3, *, waits: bool = False) -> None:
        self.result, self.waits = result, waits
        self.stopped = False

    def __call__(self, stop: Stop) -> int:
        if self.waits:
            import select

            select.select([stop.fileno()], [], [])
            self.stopped = True
            raise CalledOff("stopped")
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


async def answers(result: Any) -> Any:
    if isinstance(result, Exception):
        raise result
    return result


async def test_both_succeed() -> None:
    assert await both_ends(Sender(), answers([WORKER]), 5) == (3, [WORKER])
    assert await both_ends(Sender(), None, 5) == (3, None), "a rank that does not call the workers"


async def test_a_worker_that_fails_before_it_listens_frees_the_sender_at_once() -> None:
    """The sender's own deadline never comes."""
    sender = Sender(waits=True)
    refusal = RuntimeError("update_weights_from_ipc failed in 1 of 1 workers: [BindingIncomplete] 2 of 2")
    with pytest.raises(BindingIncomplete, match="2 of 2"):
        await both_ends(sender, answers(refusal), 3600)
    assert sender.stopped


async def test_an_error_of_the_trainer_is_the_cause() -> None:
    refusal = RuntimeError("failed: [PeerFailed] the trainer abandoned the update: KeyError: 'x'")
    with pytest.raises(KeyError):
        await both_ends(Sender(KeyError("x")), answers(refusal), 5)


@pytest.mark.parametrize("heard", [PeerFailed("refused"), PeerGone("killed"), DeadlineExceeded("silent")])
async def test_what_the_worker_says_is_the_cause_where_the_sender_only_heard_of_it(heard: Exception) -> None:
    with pytest.raises(IncompleteUpdate, match="twice"):
        await both_ends(Sender(heard), answers(RuntimeError("[IncompleteUpdate] a arrived twice")), 5)
    with pytest.raises(WeightSyncError, match="worker died"):
        await both_ends(Sender(heard), answers(RuntimeError("worker died")), 5)
    with pytest.raises(type(heard)):
        await both_ends(Sender(heard), answers([WORKER]), 5)
    with pytest.raises(type(heard)):
        await both_ends(Sender(heard), None, 5)


async def test_a_worker_that_never_answers_ends_at_the_deadline() -> None:
    with pytest.raises(DeadlineExceeded, match="did not answer"):
        await both_ends(Sender(), asyncio.Event().wait(), 0.05)


async def test_cancelling_the_update_ends_the_sending_thread() -> None:
    sender, started = Sender(waits=True), threading.Event()

    def sending(stop: Stop) -> int:
        started.set()
        return sender(stop)

    update = asyncio.ensure_future(both_ends(sending, asyncio.Event().wait(), 3600))
    await asyncio.to_thread(started.wait)
    update.cancel()
    with pytest.raises(asyncio.CancelledError):
        await update
    assert sender.stopped


@pytest.mark.parametrize(
    "wrong", [None, [], [{"tensors": 2, "bound": 2}], [WORKER, None], [{"tensors": 3, "bound": 0}]]
)
def test_an_update_counts_only_when_every_worker_put_all_of_it_to_use(wrong: Any) -> None:
    """verl's own server drops the answers: that is no confirmation."""
    assert confirmed(3, [WORKER, WORKER]) == WORKER
    with pytest.raises(IncompleteUpdate):
        confirmed(3, wrong)
