"""Parts of a step: generated one after the other, and taken in order."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from verl_omni.trainer.generation import part_stream

DEADLINE = 20.0


class Engine:
    """Makes each part when it is told to."""

    def __init__(self, parts: int, fails_at: int | None = None) -> None:
        self.sent: list[int] = []
        self.changed = threading.Condition()
        self.made = [threading.Event() for _ in range(parts)]
        self.fails_at = fails_at

    def make(self, part: int) -> str:
        with self.changed:
            self.sent.append(part)
            self.changed.notify_all()
        assert self.made[part].wait(DEADLINE)
        if part == self.fails_at:
            raise ValueError(f"part {part}")
        return f"samples of {part}"

    def wait_for(self, sent: list[int]) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.sent == sent, DEADLINE), self.sent


def refuse(join: Callable[[], None]) -> None:
    raise AssertionError("no thread is left")


def test_later_parts_are_made_while_the_caller_works_on_the_first() -> None:
    engine = Engine(3)
    stream = part_stream.in_order(range(3), engine.make, refuse)
    engine.made[0].set()
    assert next(stream) == "samples of 0"
    engine.wait_for([0, 1])
    engine.made[1].set()
    engine.wait_for([0, 1, 2])  # the caller has not asked for part 1 yet
    engine.made[2].set()
    assert list(stream) == ["samples of 1", "samples of 2"]


def test_no_part_is_sent_after_one_has_failed() -> None:
    engine = Engine(3, fails_at=1)
    left: list[Callable[[], None]] = []
    stream = part_stream.in_order(range(3), engine.make, left.append)
    for event in engine.made:
        event.set()
    assert next(stream) == "samples of 0"
    with pytest.raises(ValueError, match="part 1"):
        next(stream)
    for join in left:
        join()
    assert engine.sent == [0, 1]


def test_a_caller_that_fails_leaves_a_thread_that_the_run_waits_for() -> None:
    engine = Engine(4)
    left: list[Callable[[], None]] = []
    stream = part_stream.in_order(range(4), engine.make, left.append)
    engine.made[0].set()
    next(stream)
    engine.wait_for([0, 1])
    stream.close()
    engine.made[1].set()
    (join,) = left
    join()
    assert engine.sent == [0, 1]
