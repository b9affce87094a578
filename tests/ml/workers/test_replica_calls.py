"""What is asked of a replica ends, and an error names it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from ray.exceptions import RayError

from verl_omni.workers.rollout.replica_calls import ReplicaCallFailed, await_reply


async def says(what: Any) -> Any:
    if isinstance(what, Exception):
        raise what
    return what


async def test_an_answer_passes() -> None:
    assert await await_reply(says(3), replica=1, call="sleep", deadline=5) == 3


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (asyncio.Event().wait, r"replica 1, sleep: no answer within 0\.05 s"),
        (lambda: says(RayError("it died")), "replica 1, sleep: RayError: it died"),
        (lambda: says(TimeoutError("draining did not end")), "replica 1, sleep: TimeoutError: draining did not end"),
    ],
)
async def test_silence_death_and_a_failure_name_the_replica(answer: Any, words: str) -> None:
    with pytest.raises(ReplicaCallFailed, match=words) as caught:
        await await_reply(answer(), replica=1, call="sleep", deadline=0.05)
    assert caught.value.__cause__ is not None


async def test_other_errors_are_not_the_replicas() -> None:
    with pytest.raises(KeyError):
        await await_reply(says(KeyError("x")), replica=1, call="sleep", deadline=5)
