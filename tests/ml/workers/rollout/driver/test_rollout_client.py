"""Clients of one rollout server: errors, deadlines, cancelled requests and retries."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import RayTaskError

from tests.ml.workers.rollout.fake_router import CONFIG, Router, Server, ask, sample
from verl_omni.utils.root_cause import describe_error
from verl_omni.workers.rollout.replica_calls import ReplicaCallFailed, ReplicaError
from verl_omni.workers.rollout.vllm_rollout.driver.rollout_client import (
    DiffusionLLMServerClient,
    DiffusionWholeSampleRetryLLMServerClient,
)


async def test_a_sample_is_returned_and_its_server_released() -> None:
    router = Router(sample(4))
    output = await ask(DiffusionLLMServerClient(CONFIG, router))
    assert output.extra_fields == {"global_steps": 4, "min_global_steps": 4, "max_global_steps": 4}
    assert router.requests[0]["negative_prompt_ids"] == [2]
    assert router.released == ["10.0.0.1:81"]


async def test_an_error_from_ray_names_the_replica_in_its_last_line() -> None:
    frames = 'Traceback (most recent call last):\n  File "server.py", line 3, in generate\n    raise'
    text = f"{frames}\nValueError: no such type"
    raised = RayTaskError("generate", text, ValueError("no such type"), ip="10.0.0.1").as_instanceof_cause()
    with pytest.raises(ReplicaCallFailed) as failure:
        await ask(DiffusionLLMServerClient(CONFIG, Router(raised)))
    assert describe_error(failure.value) == "ReplicaCallFailed: replica 10.0.0.1:81: ValueError: no such type"


@pytest.mark.parametrize("crossed", [False, True], ids=["as raised", "as Ray hands it over"])
async def test_an_error_that_names_the_replica_is_not_wrapped(crossed: bool) -> None:
    error = ReplicaError(1, 4, "ValueError: no room")
    sent = RayTaskError("generate", "Traceback: a page of it", error, ip="10.0.0.1").as_instanceof_cause()
    router = Router(sent if crossed else error)
    with pytest.raises(ReplicaError) as failure:
        await ask(DiffusionLLMServerClient(CONFIG, router))
    assert str(failure.value) == "rollout replica 1, with weights of version 4: ValueError: no room"
    assert failure.value.replica_rank == 1
    assert router.released == ["10.0.0.1:81"]


class Late(Server):
    """A server that replies when the test tells it to."""

    def __init__(self) -> None:
        super().__init__(self._answer)
        self.asked: list[asyncio.Future[Any]] = []

    def _answer(self, **request: Any) -> Any:
        self.asked.append(asyncio.get_running_loop().create_future())
        return self.asked[-1]


def with_deadline(seconds: float, server: Any) -> tuple[Any, Router]:
    rollout = SimpleNamespace(name="vllm_omni", deadline_seconds=seconds)
    router = Router()
    router.server = server
    return DiffusionLLMServerClient(SimpleNamespace(actor_rollout_ref=SimpleNamespace(rollout=rollout)), router), router


async def test_a_silent_replica_is_treated_as_failed_and_its_server_released() -> None:
    server = Late()
    client, router = with_deadline(0.05, server)
    with pytest.raises(ReplicaCallFailed, match=r"replica 10\.0\.0\.1:81: no reply for 0\.05 s \(rollout\.d"):
        await ask(client)
    assert router.released == ["10.0.0.1:81"]
    assert server.asked[0].cancelled()


class Clock:
    """The time of an event loop, which passes only when a test says so."""

    def __init__(self, loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = loop.time()
        monkeypatch.setattr(loop, "time", lambda: self.now)

    async def advance(self, seconds: float) -> None:
        self.now += seconds
        for _ in range(10):  # turns of the loop: enough for a timer, and for the tasks that it wakes
            await asyncio.sleep(0)


@pytest.fixture
async def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(asyncio.get_running_loop(), monkeypatch)


async def test_each_sample_restarts_the_deadline(clock: Clock) -> None:
    """Ten samples, one after the other, take much longer than the deadline."""
    server = Late()
    turns = 10
    client, _ = with_deadline(0.2, server)
    waiting = [
        asyncio.ensure_future(client.generate(f"r{n}", prompt_ids=[1], sampling_params={})) for n in range(turns)
    ]
    await clock.advance(0)
    for number in range(turns):
        await clock.advance(0.15)
        server.asked[number].set_result(sample(number))
        await clock.advance(0)
    assert [output.extra_fields["global_steps"] for output in await asyncio.gather(*waiting)] == list(range(turns))


async def test_waiting_for_the_router_does_not_start_the_deadline(clock: Clock) -> None:
    """The router is an actor, and the first request waits while its process starts."""
    server = Late()
    client, router = with_deadline(0.05, server)
    started = router.__ray_call__.answers = asyncio.Event()
    waiting = asyncio.ensure_future(ask(client))
    await clock.advance(0)
    await clock.advance(0.2)
    assert not waiting.done()
    started.set()
    await clock.advance(0)
    await clock.advance(0)
    server.asked[0].set_result(sample(4))
    assert (await waiting).stop_reason == "completed"


async def test_cancelling_the_caller_cancels_the_request() -> None:
    server = Late()
    client, router = with_deadline(3600, server)
    waiting = asyncio.ensure_future(ask(client))
    while not server.asked:
        await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    async with asyncio.timeout(30):
        while not (router.released and server.asked[0].cancelled()):
            await asyncio.sleep(0)


def retrying(router: Router, **options: Any) -> DiffusionWholeSampleRetryLLMServerClient:
    return DiffusionWholeSampleRetryLLMServerClient(CONFIG, router, retry_wait_s=0.0, **options)


async def test_an_aborted_sample_is_retried_and_reports_all_its_versions() -> None:
    router = Router(sample(None, "aborted"), sample(4, "aborted"), sample(6), sample(7))
    output = await ask(retrying(router))
    assert output.stop_reason == "completed"
    assert output.extra_fields.items() >= {"global_steps": 6, "min_global_steps": 4, "max_global_steps": 6}.items()
    assert (output.extra_fields["times_aborted"], output.extra_fields["times_lost"]) == (2, 0)
    assert len(router.requests) == len(router.released) == 3
    assert all(request["prompt_ids"] == [1] for request in router.requests), "the whole sample, not a rest of it"


async def test_the_number_of_retries_is_limited() -> None:
    router = Router(*[sample(4, "aborted")] * 9)
    assert (await ask(retrying(router, max_retries=2))).stop_reason == "aborted"
    assert len(router.requests) == 3


async def test_a_failure_is_not_retried() -> None:
    router = Router(sample(1, "aborted"), RuntimeError("gone"), sample(1))
    with pytest.raises(ReplicaCallFailed, match="gone"):
        await ask(retrying(router))
    assert len(router.requests) == 2


def test_a_negative_number_of_retries_is_refused() -> None:
    with pytest.raises(ValueError, match="max_retries must not be negative: -1"):
        retrying(Router(), max_retries=-1)
    client = DiffusionWholeSampleRetryLLMServerClient(CONFIG, Router())
    assert (client.max_retries, client.retry_wait_s) == (50, 1.0)
