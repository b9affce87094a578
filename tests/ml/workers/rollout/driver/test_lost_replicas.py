"""Clients of a pool of rollout servers: lost replicas, replicas that join, and routers that are gone."""

import asyncio
import pickle
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, RayTaskError

from tests.ml.workers.rollout.fake_router import ActorCalls, Call, Server, ask, sample
from verl_omni.utils.root_cause import is_lost_process
from verl_omni.weight_sync.errors import TooFewReplicas
from verl_omni.workers.rollout import replica_calls
from verl_omni.workers.rollout.replica_calls import EngineDead, ReplicaCallFailed, ReplicaLost
from verl_omni.workers.rollout.vllm_rollout.driver import rollout_client
from verl_omni.workers.rollout.vllm_rollout.driver.rollout_client import DiffusionLLMServerClient


class Pool:
    """verl's load balancer with several servers; each answers every request in the same way."""

    def __init__(self, **servers: Any) -> None:
        self.servers = servers
        self.asked = []
        self.require_acquire_fields = self.require_release_fields = Call(list)
        self.__ray_call__ = ActorCalls(self)
        self.release_server = lambda server_id: None
        self.acquire_server = lambda request_id: self._next()
        self.get_all_servers = Call(lambda: list(self.servers))
        self.remove_servers = Call(lambda names: [self.servers.pop(name) for name in names])

    def _next(self) -> tuple[str, Any]:
        if not self.servers:
            raise RuntimeError("No available servers in load balancer")
        name = next(iter(self.servers))
        self.asked.append(name)
        return name, Server(Call(lambda **_: self.servers[name]).remote)


def of_pool(pool: Pool, least: int | None, deadline: float = 30.0, **more: Any) -> DiffusionLLMServerClient:
    rollout = SimpleNamespace(name="vllm_omni", deadline_seconds=deadline, min_replicas=least)
    config = SimpleNamespace(actor_rollout_ref=SimpleNamespace(rollout=rollout))
    return DiffusionLLMServerClient(config, pool, **more)


@pytest.mark.parametrize("crossed", [False, True], ids=["as raised", "as Ray hands it over"])
async def test_a_standalone_replica_whose_engine_has_ended_is_lost(crossed: bool) -> None:
    ended: Exception = EngineDead(0, 4, "OmniEngineDeadError: Stage-0 has no live replica")
    if crossed:
        ended = RayTaskError("generate", "Traceback: a page of it", ended, ip="10.0.0.1").as_instanceof_cause()
    pool = Pool(a=ended, b=sample(4))
    assert (await ask(of_pool(pool, least=1))).extra_fields["global_steps"] == 4
    assert (list(pool.servers), pool.asked) == (["b"], ["a", "b"])
    pool = Pool(a=ended, b=sample(4))
    with pytest.raises(EngineDead, match="rollout replica 0, with weights of version 4: OmniEngineDeadError"):
        await ask(of_pool(pool, least=None))
    assert pool.asked == ["a"], "on the trainer's accelerators, the run ends"


async def test_a_sample_that_ends_each_replica_in_turn_fails_with_their_reasons() -> None:
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


@pytest.mark.parametrize(
    ("waits", "message"),
    [
        (True, r"no other one joined within 0\.01 s \(rollout\.deadline"),
        (False, "no other one has the weights of this batch"),
    ],
)
async def test_a_run_ends_without_replicas_where_none_joins_in_time(
    waits: bool, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollout_client, "SERVER_POLL_SECONDS", 0.001)
    pool = Pool(a=ActorDiedError())
    with pytest.raises(TooFewReplicas, match=f"all rollout replicas are lost, and {message}"):
        await ask(of_pool(pool, least=1, deadline=0.01, waits=waits))


async def test_another_error_of_the_router_is_raised() -> None:
    pool = Pool()
    with pytest.raises(RuntimeError, match="No available servers"):
        await ask(of_pool(pool, least=None))


@pytest.mark.parametrize("method", ["__ray_call__", "get_all_servers", "remove_servers"])
async def test_a_router_that_is_gone_is_named(method: str) -> None:
    pool = Pool(a=ActorDiedError(), b=sample(4))
    setattr(pool, method, Call(lambda *_, **__: ActorDiedError()))
    with pytest.raises(ReplicaCallFailed, match=r"^the router of the rollout replicas, .* is gone: Ac") as lost:
        await ask(of_pool(pool, least=1))
    assert is_lost_process(lost.value), "the reason of the failure is WorkerLost"


async def test_a_router_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_calls, "ROUTER_SECONDS", 0.01)
    pool = Pool(a=sample(4))
    pool.__ray_call__ = SimpleNamespace(remote=lambda *_: asyncio.get_running_loop().create_future())
    with pytest.raises(ReplicaCallFailed, match=r"^the router of the rollout replicas.* did not answer within 0\.01 s"):
        await ask(of_pool(pool, least=1))


async def test_a_lost_replica_on_the_trainers_accelerators_ends_the_run() -> None:
    pool = Pool(a=ActorDiedError(), b=sample(4))
    with pytest.raises(ReplicaLost, match=r"replica a: .*died") as failure:
        await ask(of_pool(pool, least=None))
    assert (list(pool.servers), pool.asked) == (["a", "b"], ["a"])
    assert str(pickle.loads(pickle.dumps(failure.value))) == str(failure.value)


async def test_a_replica_that_another_request_has_left_out_is_not_counted_again() -> None:
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
