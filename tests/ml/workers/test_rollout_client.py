"""Clients of the rollout servers, with fakes of verl's router and of a server."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from verl_omni.utils.root_cause import describe_error, is_lost_process
from verl_omni.weight_sync.errors import TooFewReplicas
from verl_omni.workers.rollout import replica_calls
from verl_omni.workers.rollout.diffusion_output import DiffusionOutput
from verl_omni.workers.rollout.replica_calls import EngineDead, ReplicaCallFailed, ReplicaError, ReplicaLost
from verl_omni.workers.rollout.vllm_rollout.driver import rollout_client
from verl_omni.workers.rollout.vllm_rollout.driver.rollout_client import (
    DiffusionLLMServerClient,
    DiffusionWholeSampleRetryLLMServerClient,
    prompt_keys,
)

CONFIG = SimpleNamespace(actor_rollout_ref=SimpleNamespace(rollout=SimpleNamespace(name="vllm_omni")))


class Call:
    """An actor's method."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self.call = call

    async def _made(self, *args: Any, **kwargs: Any) -> Any:
        made = self.call(*args, **kwargs)
        if isinstance(made, Exception):
            raise made
        return made

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        return self._made(*args, **kwargs)


class Router:
    """verl's load balancer with one server, which returns its outputs in order; releases are counted."""

    def __init__(self, *answers: Any, missing: bool = False) -> None:
        self.requests: list[dict[str, Any]] = []
        self.released: list[str] = []
        left = list(answers)

        def answer(**request: Any) -> Any:
            self.requests.append(request)
            return left.pop(0)

        server = SimpleNamespace(generate=Call(answer))
        unavailable = RuntimeError("No available servers in load balancer")
        self.acquire_server = Call(lambda request_id: unavailable if missing else ("10.0.0.1:81", server))
        self.require_acquire_fields = self.require_release_fields = Call(list)
        self.release_server = SimpleNamespace(remote=self._release)

    def _release(self, *, server_id: str) -> None:
        self.released.append(server_id)


def sample(version: int | None, reason: str = "completed") -> DiffusionOutput:
    return DiffusionOutput(diffusion_output=torch.zeros(1), stop_reason=reason, extra_fields={"global_steps": version})


async def ask(client: Any) -> Any:
    async with asyncio.timeout(30):
        return await client.generate("r", prompt_ids=[1], sampling_params={}, negative_prompt_ids=[2])


async def test_a_sample_is_returned_and_its_server_released() -> None:
    router = Router(sample(4))
    made = await ask(DiffusionLLMServerClient(CONFIG, router))
    keys = made.extra_fields.pop("prompt_keys")
    assert keys == prompt_keys(router.requests[0])
    assert made.extra_fields == {"global_steps": 4, "min_global_steps": 4, "max_global_steps": 4}
    assert router.requests[0]["negative_prompt_ids"] == [2]
    assert router.released == ["10.0.0.1:81"]


async def test_an_error_from_ray_names_the_replica_in_its_last_line() -> None:
    from ray.exceptions import RayTaskError

    frames = 'Traceback (most recent call last):\n  File "server.py", line 3, in generate\n    raise'
    text = f"{frames}\nValueError: no such type"
    raised = RayTaskError("generate", text, ValueError("no such type"), ip="10.0.0.1").as_instanceof_cause()
    with pytest.raises(ReplicaCallFailed) as failure:
        await ask(DiffusionLLMServerClient(CONFIG, Router(raised)))
    assert describe_error(failure.value) == "ReplicaCallFailed: replica 10.0.0.1:81: ValueError: no such type"


async def test_an_error_names_the_replica_and_keeps_the_cause() -> None:
    router = Router(ValueError("Pixel rollout output must contain only finite values"))
    with pytest.raises(ReplicaCallFailed, match=r"replica 10\.0\.0\.1:81: ValueError: Pixel rollout") as failure:
        await ask(DiffusionLLMServerClient(CONFIG, router))
    assert isinstance(failure.value.__cause__, ValueError)
    assert router.released == ["10.0.0.1:81"]


@pytest.mark.parametrize("crossed", [False, True], ids=["as raised", "as Ray hands it over"])
async def test_an_error_that_names_the_replica_is_not_wrapped(crossed: bool) -> None:
    from ray.exceptions import RayTaskError

    own = ReplicaError(1, 4, "ValueError: no room")
    sent = RayTaskError("generate", "Traceback: a page of it", own, ip="10.0.0.1").as_instanceof_cause()
    router = Router(sent if crossed else own)
    with pytest.raises(ReplicaError) as failure:
        await ask(DiffusionLLMServerClient(CONFIG, router))
    assert str(failure.value) == "rollout replica 1, with weights of version 4: ValueError: no room"
    assert failure.value.replica_rank == 1
    assert router.released == ["10.0.0.1:81"]


async def test_an_error_before_a_replica_is_acquired_is_not_wrapped() -> None:
    with pytest.raises(RuntimeError, match="No available servers") as failure:
        await ask(DiffusionLLMServerClient(CONFIG, Router(missing=True)))
    assert not isinstance(failure.value, ReplicaCallFailed)


class Late:
    """A server that replies when the test tells it to."""

    def __init__(self) -> None:
        self.asked: list[asyncio.Future[Any]] = []
        self.generate = SimpleNamespace(remote=self._answer)

    def _answer(self, **request: Any) -> Any:
        self.asked.append(asyncio.get_running_loop().create_future())
        return self.asked[-1]


def with_deadline(seconds: float, server: Any) -> tuple[Any, Router]:
    rollout = SimpleNamespace(name="vllm_omni", deadline_seconds=seconds)
    router = Router()
    router.acquire_server = Call(lambda request_id: ("10.0.0.1:81", server))
    return DiffusionLLMServerClient(SimpleNamespace(actor_rollout_ref=SimpleNamespace(rollout=rollout)), router), router


async def test_a_silent_replica_is_treated_as_failed_and_its_server_released() -> None:
    server = Late()
    client, router = with_deadline(0.05, server)
    with pytest.raises(ReplicaCallFailed, match=r"replica 10\.0\.0\.1:81: no reply for 0\.05 s \(rollout\.d"):
        await ask(client)
    assert router.released == ["10.0.0.1:81"]
    assert server.asked[0].cancelled()


class Pool:
    """verl's load balancer with several servers; each answers every request in the same way."""

    def __init__(self, **servers: Any) -> None:
        self.servers, self.asked = servers, []
        self.require_acquire_fields = self.require_release_fields = Call(list)
        self.release_server = SimpleNamespace(remote=lambda server_id: None)
        self.acquire_server = Call(lambda request_id: self._next())
        self.get_all_servers = Call(lambda: list(self.servers))
        self.remove_servers = Call(lambda names: [self.servers.pop(name) for name in names])

    def _next(self) -> tuple[str, Any]:
        if not self.servers:
            raise RuntimeError("No available servers in load balancer")
        name = next(iter(self.servers))
        self.asked.append(name)
        return name, SimpleNamespace(generate=Call(lambda **_: self.servers[name]))


def of_pool(pool: Pool, least: int | None, deadline: float = 30.0, **more: Any) -> DiffusionLLMServerClient:
    rollout = SimpleNamespace(name="vllm_omni", deadline_seconds=deadline, min_replicas=least)
    config = SimpleNamespace(actor_rollout_ref=SimpleNamespace(rollout=rollout))
    return DiffusionLLMServerClient(config, pool, **more)


async def test_a_lost_replica_leaves_the_router_and_another_one_generates_the_sample() -> None:
    from ray.exceptions import ActorDiedError

    pool = Pool(a=ActorDiedError(), b=ActorDiedError(), c=sample(4))
    client = of_pool(pool, least=1)
    assert (await ask(client)).extra_fields["global_steps"] == 4
    assert (list(pool.servers), pool.asked) == (["c"], ["a", "b", "c"])
    assert (await ask(client)).extra_fields["global_steps"] == 4


@pytest.mark.parametrize("crossed", [False, True], ids=["as raised", "as Ray hands it over"])
async def test_a_standalone_replica_whose_engine_has_ended_is_lost(crossed: bool) -> None:
    from ray.exceptions import RayTaskError

    own: Exception = EngineDead(0, 4, "OmniEngineDeadError: Stage-0 has no live replica")
    if crossed:
        own = RayTaskError("generate", "Traceback: a page of it", own, ip="10.0.0.1").as_instanceof_cause()
    pool = Pool(a=own, b=sample(4))
    assert (await ask(of_pool(pool, least=1))).extra_fields["global_steps"] == 4
    assert (list(pool.servers), pool.asked) == (["b"], ["a", "b"])
    pool = Pool(a=own, b=sample(4))
    with pytest.raises(EngineDead, match="rollout replica 0, with weights of version 4: OmniEngineDeadError"):
        await ask(of_pool(pool, least=None))
    assert pool.asked == ["a"], "on the trainer's accelerators, the run ends"


async def test_a_sample_that_ends_each_replica_in_turn_fails_with_their_reasons() -> None:
    from ray.exceptions import ActorDiedError

    pool = Pool(r0=ActorDiedError())

    def replaced(names: list[str]) -> None:
        for name in names:
            pool.servers.pop(name)
        pool.servers[f"r{len(pool.asked)}"] = ActorDiedError()

    pool.remove_servers = Call(replaced)
    with pytest.raises(ReplicaCallFailed, match=r"^6 rollout replicas were lost.*: replica r3: .*; replica r5: .*died"):
        await ask(of_pool(pool, least=1))
    assert pool.asked == [f"r{number}" for number in range(rollout_client.LOSSES_OF_A_SAMPLE + 1)]
    assert list(pool.servers) == ["r6"], "the last one is left to other samples"


async def test_requests_wait_for_a_replica_that_joins(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray.exceptions import ActorDiedError, ObjectLostError

    monkeypatch.setattr(rollout_client, "SERVER_POLL_SECONDS", 0.001)
    pool = Pool(a=ActorDiedError(), b=ObjectLostError("ab", None, ""))
    client = of_pool(pool, least=1)
    acquire, asked = pool._next, []

    def joins() -> tuple[str, Any]:
        asked.append(len(pool.servers))
        if asked.count(0) == 3:
            pool.servers["c"] = sample(4)
        return acquire()

    pool.acquire_server = Call(lambda request_id: joins())
    assert (await ask(client)).extra_fields["global_steps"] == 4
    assert (pool.asked, asked) == (["a", "b", "c"], [2, 1, 0, 0, 0])


@pytest.mark.parametrize(
    ("waits", "said"),
    [
        (True, r"no other one joined within 0\.01 s \(rollout\.deadline"),
        (False, "no other one has the weights of this batch"),
    ],
)
async def test_a_run_ends_without_replicas_where_none_joins_in_time(
    waits: bool, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ray.exceptions import ActorDiedError

    monkeypatch.setattr(rollout_client, "SERVER_POLL_SECONDS", 0.001)
    pool = Pool(a=ActorDiedError())
    with pytest.raises(TooFewReplicas, match=f"all rollout replicas are lost, and {said}"):
        await ask(of_pool(pool, least=1, deadline=0.01, waits=waits))


async def test_another_error_of_the_router_is_raised() -> None:
    pool = Pool()
    with pytest.raises(RuntimeError, match="No available servers"):
        await ask(of_pool(pool, least=None))


@pytest.mark.parametrize("method", ["acquire_server", "get_all_servers", "remove_servers"])
async def test_a_router_that_is_gone_is_named(method: str) -> None:
    from ray.exceptions import ActorDiedError

    pool = Pool(a=ActorDiedError(), b=sample(4))
    setattr(pool, method, Call(lambda *_, **__: ActorDiedError()))
    with pytest.raises(ReplicaCallFailed, match=r"^the router of the rollout replicas, .* is gone: Ac") as lost:
        await ask(of_pool(pool, least=1))
    assert is_lost_process(lost.value), "the reason of the failure is WorkerLost"


async def test_a_router_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_calls, "ROUTER_SECONDS", 0.01)
    pool = Pool(a=sample(4))
    pool.acquire_server = SimpleNamespace(remote=lambda request_id: asyncio.get_running_loop().create_future())
    with pytest.raises(ReplicaCallFailed, match=r"^the router of the rollout replicas.* did not answer within 0\.01 s"):
        await ask(of_pool(pool, least=1))


async def test_a_lost_replica_on_the_trainers_accelerators_ends_the_run() -> None:
    from ray.exceptions import ActorDiedError

    pool = Pool(a=ActorDiedError(), b=sample(4))
    with pytest.raises(ReplicaLost, match=r"replica a: .*died") as failure:
        await ask(of_pool(pool, least=None))
    assert (list(pool.servers), pool.asked) == (["a", "b"], ["a"])
    assert str(pickle.loads(pickle.dumps(failure.value))) == str(failure.value)


async def test_a_replica_that_another_request_has_left_out_is_not_counted_again() -> None:
    from ray.exceptions import ActorDiedError

    pool = Pool(a=ActorDiedError(), b=sample(4))

    def left() -> list[str]:
        pool.servers.pop("a", None)
        return list(pool.servers)

    pool.get_all_servers = Call(left)
    assert (await ask(of_pool(pool, least=1))).extra_fields["global_steps"] == 4


async def test_an_error_of_an_engine_is_no_loss_of_a_replica() -> None:
    pool = Pool(a=ValueError("no room"), b=sample(4))
    with pytest.raises(ReplicaCallFailed, match="replica a: ValueError: no room"):
        await ask(of_pool(pool, least=1))
    assert pool.asked == ["a"]


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
    server, turns = Late(), 10
    client, _ = with_deadline(0.2, server)
    waiting = [
        asyncio.ensure_future(client.generate(f"r{n}", prompt_ids=[1], sampling_params={})) for n in range(turns)
    ]
    await clock.advance(0)
    for number in range(turns):
        await clock.advance(0.15)
        server.asked[number].set_result(sample(number))
        await clock.advance(0)
    assert [made.extra_fields["global_steps"] for made in await asyncio.gather(*waiting)] == list(range(turns))


async def test_waiting_for_the_router_does_not_start_the_deadline(clock: Clock) -> None:
    """The router is an actor, and the first request waits while its process starts."""
    server, started = Late(), asyncio.Event()
    client, router = with_deadline(0.05, server)

    async def acquired() -> Any:
        await started.wait()
        return "10.0.0.1:81", server

    router.acquire_server = SimpleNamespace(remote=lambda request_id: acquired())
    waiting = asyncio.ensure_future(ask(client))
    await clock.advance(0)
    await clock.advance(0.2)
    assert not waiting.done()
    started.set()
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
    assert router.released == ["10.0.0.1:81"] and server.asked[0].cancelled()


def retrying(router: Router, **options: Any) -> DiffusionWholeSampleRetryLLMServerClient:
    return DiffusionWholeSampleRetryLLMServerClient(CONFIG, router, retry_wait_s=0.0, **options)


async def test_an_aborted_sample_is_retried_and_reports_all_its_versions() -> None:
    router = Router(sample(None, "aborted"), sample(4, "aborted"), sample(6), sample(7))
    made = await ask(retrying(router))
    assert made.stop_reason == "completed"
    assert made.extra_fields.items() >= {"global_steps": 6, "min_global_steps": 4, "max_global_steps": 6}.items()
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
    made = DiffusionWholeSampleRetryLLMServerClient(CONFIG, Router())
    assert (made.max_retries, made.retry_wait_s) == (50, 1.0)
