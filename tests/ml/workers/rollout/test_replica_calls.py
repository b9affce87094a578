"""Calls to a replica end at a deadline, and errors name the replica."""

import asyncio
from typing import Any

import pytest
from ray.exceptions import RayError

from verl_omni.workers.rollout.replica_calls import ReplicaCallFailed, await_reply


async def reply_with(value: Any) -> Any:
    if isinstance(value, Exception):
        raise value
    return value


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (asyncio.Event().wait, r"replica 1, sleep: no reply within 0\.05 s"),
        (lambda: reply_with(RayError("it died")), "replica 1, sleep: RayError: it died"),
        (
            lambda: reply_with(TimeoutError("draining did not end")),
            "replica 1, sleep: TimeoutError: draining did not end",
        ),
    ],
)
async def test_timeout_death_and_failure_name_the_replica(answer: Any, words: str) -> None:
    with pytest.raises(ReplicaCallFailed, match=words) as caught:
        await await_reply(answer(), replica=1, call="sleep", deadline=0.05)
    assert caught.value.__cause__ is not None


async def test_other_errors_are_not_translated() -> None:
    with pytest.raises(KeyError):
        await await_reply(reply_with(KeyError("x")), replica=1, call="sleep", deadline=5)
