"""Parts of a step: sent two at a time, and taken in order."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from verl_omni.trainer.generation import part_stream

DEADLINE = 20.0


class Engine:
    """Makes each part when it is told to."""

    def __init__(self, parts: int) -> None:
        self.sent: list[int] = []
        self.changed = threading.Condition()
        self.made = [threading.Event() for _ in range(parts)]

    def make(self, part: int) -> str:
        with self.changed:
            self.sent.append(part)
            self.changed.notify_all()
        assert self.made[part].wait(DEADLINE)
        if part == 13:
            raise ValueError("part 13")
        return f"samples of {part}"

    def wait_for(self, sent: set[int]) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: set(self.sent) == sent, DEADLINE), self.sent


def refuse(join: Callable[[], None]) -> None:
    raise AssertionError("no thread is left")


def test_the_next_part_is_sent_before_the_caller_works_on_the_last_one() -> None:
    engine = Engine(4)
    stream = part_stream.in_order(range(4), engine.make, refuse)
    engine.made[0].set()
    assert next(stream) == "samples of 0"
    engine.wait_for({0, 1, 2})  # while the caller trains on part 0, one is generated and one waits
    engine.made[1].set()
    assert next(stream) == "samples of 1"
    engine.wait_for({0, 1, 2, 3})
    engine.made[3].set()
    engine.made[2].set()
    assert list(stream) == ["samples of 2", "samples of 3"]


def test_no_part_is_sent_after_one_has_failed() -> None:
    engine = Engine(20)
    left: list[Callable[[], None]] = []
    stream = part_stream.in_order([13, 14, 15, 16], engine.make, left.append)
    engine.made[13].set()
    with pytest.raises(ValueError, match="part 13"):
        next(stream)
    engine.wait_for({13, 14})
    engine.made[14].set()
    for join in left:
        join()
    assert set(engine.sent) == {13, 14} and len(left) == 2


def test_a_caller_that_fails_leaves_threads_that_the_run_waits_for() -> None:
    engine = Engine(4)
    left: list[Callable[[], None]] = []
    stream = part_stream.in_order(range(4), engine.make, left.append)
    engine.made[0].set()
    next(stream)
    engine.wait_for({0, 1, 2})
    stream.close()
    assert len(left) == 2
    for event in engine.made:
        event.set()
    for join in left:
        join()
    assert set(engine.sent) == {0, 1, 2}
