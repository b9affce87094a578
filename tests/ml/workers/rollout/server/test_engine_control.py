"""Abort, drain, sleep and wake of a server, with a fake engine that records its calls in order."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.ml.workers.rollout.fake_engine import PARAMS, Engine, asking, server_with, turn
from verl_omni.workers.rollout.vllm_rollout.server import http_gate

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]  # the server's module takes half a minute to import


async def test_abort_all_aborts_running_requests_and_holds_new_ones_until_resume() -> None:
    server = server_with(Engine())
    running = [asking(server, name) for name in "ab"]
    await turn()
    assert await server.abort_all_requests() == {"aborted_count": 2, "request_ids": ["a", "b"]}
    assert [(await task).stop_reason for task in running] == ["aborted", "aborted"]
    late = asking(server, "c")
    await turn()
    assert not late.done() and server.engine.request_states == {}
    await server.resume_generation()
    await turn()
    assert list(server.engine.request_states) == ["c"]
    assert await server.abort_request("c") == {"aborted": True, "request_id": "c"}
    assert (await late).stop_reason == "aborted"
    assert server.engine.told == ["pause", ("abort", ["a", "b"]), "resume", ("abort", "c")]


async def test_a_rejecting_server_aborts_new_requests_at_once() -> None:
    server = server_with(Engine())
    await server.abort_all_requests(reject_request=True)
    late = await server.generate([1], PARAMS, "late")
    assert late.stop_reason == "aborted" and late.extra_fields == {"global_steps": 3}
    assert late.diffusion_output.numel() == 0 and server.engine.told == ["pause"]


async def test_a_request_that_is_being_admitted_is_aborted_too() -> None:
    server = server_with(Engine())
    asked = asyncio.Event()
    server.model_config.lora_rank = 4

    async def list_loras() -> list[int]:
        await asked.wait()
        return []

    server.engine.list_loras = list_loras
    slow = asking(server, "slow")
    await turn()
    aborting = asyncio.create_task(server.abort_all_requests())
    await turn()
    assert server.engine.told == [], "the engine was paused before the request could reach it"
    asked.set()
    assert (await aborting)["request_ids"] == ["slow"]
    assert (await slow).stop_reason == "aborted"


async def test_the_engine_gets_the_priority_of_a_request() -> None:
    server = server_with(Engine())
    asked = asyncio.create_task(server.generate([1], PARAMS, "a", priority=7))
    await turn()
    assert server.engine.request_states["a"].priority == 7
    await server.abort_request("a")
    assert (await asked).stop_reason == "aborted"


async def test_an_unknown_request_is_not_aborted() -> None:
    server = server_with(Engine())
    assert await server.abort_request("stranger") == {"aborted": False, "request_id": "stranger"}
    assert server.engine.told == []


async def test_draining_has_a_deadline() -> None:
    server = server_with(Engine())
    task = asking(server, "a")
    await turn()
    with pytest.raises(TimeoutError, match=r"timeout after 0.02 s while draining requests"):
        await server.wait_for_requests_to_drain(deadline=0.02)
    await server.engine.abort("a")
    await server.wait_for_requests_to_drain(deadline=5)
    assert (await task).stop_reason == "aborted"


@pytest.mark.parametrize("mode", ["HYBRID", "COLOCATED"])
async def test_sleep_and_wake_are_acknowledged_by_every_stage(mode: str) -> None:
    server = server_with(Engine(stages=2), mode)
    await server.wake_up()
    assert server.engine.told == [], "awake already"
    await server.sleep()
    await server.wake_up(["weights"])
    await server.wake_up(["weights"])
    await server.wake_up(["kv_cache"])
    assert server.engine.told == [("sleep", 1), ("wake_up", ["weights"]), ("wake_up", ["kv_cache"])]


def over_http(server: Any, name: str) -> asyncio.Task[Any]:
    from verl_omni.workers.rollout.vllm_rollout.server.engine_replies import last_output
    from verl_omni.workers.rollout.vllm_rollout.server.http_app import PolicyEngine

    engine = PolicyEngine(server.engine, server._policy, server._http)
    return asyncio.create_task(last_output(engine.generate("a lawn", request_id=name)))


async def sleep(server: Any) -> Any:
    await server.sleep()
    return server.wake_up


async def abort(server: Any) -> Any:
    await server.abort_all_requests()
    return server.resume_generation


async def update(server: Any) -> Any:
    begun = asyncio.Event()
    sent = asyncio.Event()

    async def transfer(method: str, **call: Any) -> list[Any]:
        begun.set()
        await sent.wait()
        return [[{"tensors": 2, "bytes": 64, "lora": True, "bound": 1}]]

    server.engine.collective_rpc = transfer
    updating = asyncio.create_task(server.collective_rpc("update_weights_from_ipc", kwargs={"global_steps": 4}))
    await begun.wait()

    async def finish() -> None:
        sent.set()
        await updating

    return finish


@pytest.mark.parametrize("begin", [sleep, abort, update])
async def test_requests_over_http_start_again_after_a_sleep_an_abort_or_an_update(begin: Any) -> None:
    server = server_with(Engine())
    early = over_http(server, "early")
    await turn()
    assert list(server._running()) == ["early"] and await server.requests_in_flight() == 1
    end = await begin(server)
    assert server._running() == [], "the engine still has it"
    late = over_http(server, "late")
    await turn()
    assert server._running() == [] and await server.requests_in_flight() == 2
    await end()
    await turn()
    assert sorted(server._running()) == ["early", "late"]
    for name, task in (("early", early), ("late", late)):
        await server.engine.abort(name)
        assert (await task).outputs


async def test_a_replica_whose_engine_keeps_a_request_over_http_does_not_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_gate, "CANCEL_SECONDS", 0.02)
    dropped = asyncio.Event()

    class Keeping(Engine):
        async def generate(self, **arguments: Any) -> Any:
            try:
                async for output in super().generate(**arguments):
                    yield output
            finally:
                await dropped.wait()

    server = server_with(Keeping())
    early = over_http(server, "early")
    await turn()
    with pytest.raises(TimeoutError, match="while the engine drops 1 requests over HTTP, because this replica sleeps"):
        await server.sleep()
    await server.wake_up()
    assert server.engine.told == [], "it was not told to sleep, and acknowledges no call to wake up"
    dropped.set()
    tasks = [early, asking(server, "a")]
    await turn()
    await turn()  # the early one is dropped, and then starts again
    assert sorted(server._running()) == ["a", "early"]
    for name, task in zip(("early", "a"), tasks, strict=True):
        await server.engine.abort(name)
        assert await task
    await server.sleep()
    await server.wake_up()
    assert server.engine.told[2:] == [("sleep", 1), ("wake_up", ["kv_cache", "weights"])]


async def test_requests_of_training_wait_for_an_update_too() -> None:
    server = server_with(Engine())
    finish = await update(server)
    waiting = asking(server, "a")
    await turn()
    assert server._running() == []
    await finish()
    await turn()
    assert server._running() == ["a"]
    await server.abort_request("a")
    assert (await waiting).extra_fields == {"global_steps": 4}


async def test_a_standalone_server_never_sleeps() -> None:
    server = server_with(Engine(), "STANDALONE")
    await server.sleep()
    await server.wake_up()
    server.rollout_mode = None
    server.config.free_cache_engine = False
    await server.sleep()
    assert server.engine.told == []


async def test_an_http_request_uses_the_policys_adapter(tmp_path: Path) -> None:
    from verl_omni.workers.rollout.vllm_rollout.server.http_app import Policy, PolicyEngine
    from verl_omni.workers.rollout.vllm_rollout.server.http_gate import HttpGate

    seen: list[Any] = []

    class InnerEngine:
        name = "inner"

        async def generate(self, *, sampling_params_list: list[Any] | None, lora_request: Any, **asked: Any) -> Any:
            seen.extend(params.lora_request for params in sampling_params_list or ())
            seen.append(lora_request)
            yield "picture"

    @asynccontextmanager
    async def policy() -> AsyncIterator[Policy]:
        yield Policy("policy", 7)

    engine = PolicyEngine(InnerEngine(), policy, HttpGate(30.0, nullcontext))
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (tmp_path / name).touch()
    named = SimpleNamespace(lora_int_id=1, lora_path=str(tmp_path))
    asked = [SimpleNamespace(lora_request=None), SimpleNamespace(lora_request=named)]
    drawn = [output async for output in engine.generate("a lawn", request_id="1", sampling_params_list=asked)]
    assert drawn == ["picture"] and seen == ["policy", named, None] and engine.name == "inner"
    seen.clear()
    # The parameters of a language model name no adapter.
    for adapter in (None, "own"):
        assert [output async for output in engine.generate("a lawn", object(), "1", lora_request=adapter)] == [
            "picture"
        ]
    assert seen == ["policy", "own"]


async def test_requests_in_flight_versions_and_bytes_are_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    from verl_omni.utils.metrics.metrics_writer import MetricsWriter

    seen: list[tuple[str, float, str]] = []

    def record(self: Any, metric: Any, value: float, **labels: str) -> None:
        seen.append((metric.name.removeprefix("omni_"), value, self.labels["replica"]))

    monkeypatch.setattr(MetricsWriter, "set", record)
    monkeypatch.setattr(MetricsWriter, "add", record)
    server = server_with(Engine())
    server._ready.clear()
    tasks = [asking(server, name) for name in "ab"]
    await turn()
    requests = "rollout_requests_in_flight"
    assert seen == [(requests, 1, "1"), (requests, 2, "1")], "those that wait while it sleeps count too"
    server._ready.set()
    await turn()
    await server.abort_all_requests()
    for task in tasks:
        await task
    assert seen[2:] == [(requests, 1, "1"), (requests, 0, "1")]
    seen.clear()

    async def reply(**call: Any) -> list[Any]:
        return [[{"tensors": 2, "bytes": 640, "bound": 1, "lora": False}]]

    server.engine.collective_rpc = reply
    await server.collective_rpc("update_weights_from_ipc", kwargs={"global_steps": 4})
    assert seen == [("weight_update_bytes_total", 640, "1")], "the version is served once the adapter publishes it"
    await server.set_global_steps(4)
    assert seen[1:] == [("weight_version_served", 4, "1"), (requests, 0, "1")]
