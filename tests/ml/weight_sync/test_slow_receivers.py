"""A receiver that is slower than the others leaves an update; one that is as slow as all others does not."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from verl_omni.weight_sync import tcp_sender as sending
from verl_omni.weight_sync.messages import BucketMessage
from verl_omni.weight_sync.tcp_sender import StreamSender

AT_ONCE = -1


class Held:
    """A receiver that takes a bucket when the test says so, or at once, as one whose socket has room for it."""

    def __init__(self, at_once: bool) -> None:
        self.delay = 0.0
        self.taken = asyncio.Event()
        self._at_once = at_once
        self.connection = SimpleNamespace(close=lambda: None)

    async def send(self, message: BucketMessage, contents: list[memoryview]) -> None:
        if not self._at_once:
            await self.taken.wait()


@pytest.mark.parametrize(
    ("seconds", "failed"),
    [
        ([0, 7], [1]),
        ([0, 0, 7], [2]),
        ([AT_ONCE, 7], [1]),
        ([AT_ONCE, AT_ONCE, 7], [2]),
        ([7, AT_ONCE], [0]),
        ([7, 7], []),
        ([7], []),
        ([0, 1], []),
        ([AT_ONCE, 1], []),
    ],
    ids=[
        "one of two",
        "one of three",
        "one of two, after the other",
        "one of three, after the others",
        "one of two, before the other",
        "slow for all",
        "the only one",
        "as fast as the least rate",
        "as fast as the least rate, after the other",
    ],
)
async def test_a_receiver_that_makes_the_others_wait_for_more_than_the_deadline_in_all_fails(
    seconds: list[int], failed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of three buckets, which take one second at the least rate, arrives within the deadline of 10 s."""
    loop = asyncio.get_running_loop()
    now = loop.time()
    monkeypatch.setattr(loop, "time", lambda: now)
    stream: Any = StreamSender("127.0.0.1", b"token", 10.0)
    stream._peers = {number: Held(duration == AT_ONCE) for number, duration in enumerate(seconds)}
    content = memoryview(bytes(sending.LEAST_RATE))
    for _ in range(3):
        bucket = asyncio.ensure_future(stream._send_bucket(BucketMessage({}), [content]))
        for second in range(8):
            for _ in range(10):  # turns of the loop: enough for a timer, and for the tasks that it wakes
                await asyncio.sleep(0)
            for number, peer in stream._peers.items():
                if seconds[number] == second:
                    peer.taken.set()
            for _ in range(10):
                await asyncio.sleep(0)
            now += 1.0
        await bucket
        for peer in stream._peers.values():
            peer.taken.clear()
    assert sorted(stream._failed) == failed
    for reason in stream._failed.values():
        assert reason == "[DeadlineExceeded] it made the other receivers wait for more than 10 s in this update"
    stream._listener.close()
