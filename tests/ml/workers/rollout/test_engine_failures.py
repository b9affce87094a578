"""Failures of an engine and of calls to a replica, each with the replica's name."""

import asyncio
import pickle
from types import SimpleNamespace
from typing import Any

import pytest

from tests.ml.workers.rollout.fake_engine import PARAMS, Engine, asking, server_with, turn
from verl_omni.workers.rollout.replica_calls import EngineDead, ReplicaCallFailed, ReplicaError

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]  # the server's module takes half a minute to import


@pytest.mark.parametrize(
    ("engine", "message"),
    [({"status": "ERROR"}, "was refused: ERROR: no memory"), ({"stages": 2, "answers": 1}, "by 1 of 2 stages")],
)
async def test_an_unacknowledged_sleep_or_wake_raises(engine: dict[str, Any], message: str) -> None:
    server = server_with(Engine(**engine))
    with pytest.raises(RuntimeError, match=f"sleep .*{message}"):
        await server.sleep()
    waiting = asking(server, "a")
    with pytest.raises(RuntimeError, match=f"wake_up .*{message}"):
        await server.wake_up()
    await turn()
    assert server.engine.request_states == {}, "it is not awake"
    server.engine._acks = Engine(stages=engine.get("stages", 1))._acks
    await server.wake_up()
    await turn()
    await server.abort_request("a")
    assert (await waiting).stop_reason == "aborted", "it reached the engine"


async def test_a_failure_names_the_replica_and_its_weights() -> None:
    server = server_with(Engine())
    server.engine.fault = OSError("no device")
    with pytest.raises(ReplicaError) as caught:
        await server.generate([1], PARAMS, "a")
    assert (caught.value.replica_rank, caught.value.global_steps) == (1, 3)
    assert str(caught.value) == "rollout replica 1, with weights of version 3: OSError: no device"
    assert isinstance(caught.value.__cause__, OSError) and server._admitting == 0


async def test_an_engine_that_has_ended_is_told_apart_from_one_that_failed_a_request() -> None:
    from vllm_omni.entrypoints.omni_base import OmniEngineDeadError

    server = server_with(Engine())
    await server.check_engine()
    server.engine.fault = server.engine.ended = OmniEngineDeadError("Stage-0 has no live replica")
    message = "rollout replica 1, with weights of version 3: OmniEngineDeadError: Stage-0 has no live replica"
    for asked in (server.generate([1], PARAMS, "a"), server.check_engine()):
        with pytest.raises(EngineDead) as caught:
            await asked
        assert str(caught.value) == message


async def test_a_request_that_fails_because_its_worker_dies_says_that_the_engine_has_ended() -> None:
    from vllm.v1.engine.exceptions import EngineDeadError

    server = server_with(Engine())
    server.engine.fault = RuntimeError("Executor shut down")
    with pytest.raises(ReplicaError) as caught:
        await server.generate([1], PARAMS, "a")
    assert not isinstance(caught.value, EngineDead)
    server.engine.ended = EngineDeadError("Stage-0 has no live replica")
    with pytest.raises(EngineDead, match="with weights of version 3: RuntimeError: Executor shut down"):
        await server.generate([1], PARAMS, "a")


def test_the_error_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(ReplicaError(2, None, "gone")))
    assert (error.replica_rank, error.global_steps, error.reason) == (2, None, "gone")
    assert str(error) == "rollout replica 2, with its first weights: gone"


async def test_an_invalid_parameter_leaves_no_open_admission() -> None:
    server = server_with(Engine())
    with pytest.raises(ValueError, match="Unknown output_type"):
        await server.generate([1], {"output_type": "hologram"}, "a")
    assert server._admitting == 0


async def test_a_control_call_without_reply_raises_and_names_the_replica() -> None:
    from verl_omni.workers.rollout.vllm_rollout.vllm_omni_async_server import vLLMOmniReplica

    class Silent:
        """A server whose methods never reply."""

        def __getattr__(self, name: str) -> Any:
            return SimpleNamespace(remote=lambda *args, **kwargs: asyncio.Event().wait())

    replica: Any = object.__new__(vLLMOmniReplica)
    replica.replica_rank = 3
    replica.servers = [Silent()]
    replica.config = SimpleNamespace(deadline_seconds=0.05)
    caches = ("clear_kv_cache", "release_kv_cache", "resume_kv_cache")
    for name in ("sleep", "wake_up", "abort_all_requests", "abort_request", "resume_generation", *caches):
        with pytest.raises(ReplicaCallFailed, match=rf"replica 3, {name}: no reply within 0\.05 s"):
            async with asyncio.timeout(5):
                await getattr(replica, name)(*(["r"] if name == "abort_request" else []))
