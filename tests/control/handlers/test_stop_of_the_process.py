"""Stop of the process: what the operator has to release, it releases before kopf has ended."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import kopf
import pytest
from aiohttp import web
from kubernetes.aio.client import Configuration

from control.cluster.local_server import serving
from omni_operator.cluster.credentials import Credentials, Loaded
from omni_operator.cluster.kinds import Body
from omni_operator.handlers.kopf_login import register_login
from omni_operator.handlers.process import _cancel, _join, _operate, register_start_and_stop
from omni_operator.settings import Settings


@pytest.fixture
async def credentials() -> AsyncIterator[Credentials]:
    """Credentials for an API server without any kind."""

    async def answer(_: web.Request) -> web.Response:
        return web.json_response({"kind": "APIGroupList", "groups": [], "resources": [], "versions": ["v1"]})

    async with serving(answer) as port:
        yield Credentials(Loaded(Configuration(host=f"http://127.0.0.1:{port}"), "ns"), {}, Path())


class Streaming:
    """Watches of an API server that streams lists."""

    async def changes(self, *_: Any) -> AsyncGenerator[tuple[str, Body]]:
        yield "ADDED", {}

    async def pages(self, *_: Any) -> AsyncGenerator[tuple[list[Body], str]]:
        yield [], ""


async def test_the_lease_is_released_while_kopf_still_waits(credentials: Credentials) -> None:
    signal = asyncio.Event()
    released = asyncio.Event()

    async def release() -> None:
        released.set()

    registry = kopf.OperatorRegistry()
    register_login(registry, credentials)
    register_start_and_stop(registry, Streaming(), Settings(), release)
    operating = asyncio.create_task(_operate(registry, (), signal))
    await asyncio.sleep(0.1)
    signal.set()
    waiting = asyncio.create_task(released.wait())
    await asyncio.wait([operating, waiting], return_when=asyncio.FIRST_COMPLETED)
    assert released.is_set()
    assert not operating.done()
    operating.cancel()
    await asyncio.gather(operating, return_exceptions=True)


@pytest.mark.slow
async def test_a_signal_ends_a_process_that_waits_for_the_definition_of_jobs(
    credentials: Credentials, tmp_path: Path
) -> None:
    """Not by the signal's default, which does nothing to the first process of a container."""
    kubeconfig = tmp_path / "kubeconfig"
    names = {"cluster": "c", "user": "u"}
    config = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": names}],
        "clusters": [{"name": "c", "cluster": {"server": credentials.loaded.configuration.host}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }
    kubeconfig.write_text(json.dumps(config), encoding="utf-8")
    ports = {f"OMNI_OPERATOR_{name}_PORT": "0" for name in ("HTTP", "REPORTS")}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "omni_operator.main",
        env={**os.environ, "KUBECONFIG": str(kubeconfig), "OMNI_OPERATOR_IMAGE": "rollout:1", **ports},
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr
    try:
        async with asyncio.timeout(120):
            while b"DiffusionRLJobs are not served" not in await process.stderr.readline():
                assert not process.stderr.at_eof()
            process.terminate()
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_a_joined_task_ends_with_whoever_joined_it_and_its_error_is_raised() -> None:
    log: list[str] = []

    async def resign() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            log.append("resigned")

    for end in ("the task", "the other"):
        task = asyncio.create_task(resign())
        joined = asyncio.create_task(_join(task))
        await asyncio.sleep(0)
        if end == "the task":
            await _cancel(task)
            await joined
        else:
            joined.cancel()
            await asyncio.gather(joined, return_exceptions=True)
        assert task.cancelled()
    assert log == ["resigned"] * 2

    async def fail() -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await _join(asyncio.create_task(fail()))
