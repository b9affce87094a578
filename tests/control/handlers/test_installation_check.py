"""What `helm test` runs: it accepts an operator that serves, and says what is missing of one that does not."""

import asyncio
import random

import pytest
from aiohttp import web

from e2e.cluster.ports import free_ports
from omni_operator import installation_check
from omni_operator.cluster.watch.watch_liveness import WatchLiveness
from omni_operator.handlers.http_server import probe_routes, serve
from omni_operator.metrics import OperatorMetrics


def checked(url: str) -> list[str]:
    """Problems of one try."""
    return installation_check.check(url, 0.0, lambda: 0.0, lambda _: None)


async def test_an_operator_that_serves_passes(capsys: pytest.CaptureFixture[str]) -> None:
    liveness = WatchLiveness(60.0)
    async with serve(probe_routes(liveness, OperatorMetrics(), lambda: 0.0), 0, host="127.0.0.1") as port:
        url = f"http://127.0.0.1:{port}"
        (problem,) = await asyncio.to_thread(checked, url)
        assert "/readyz: status 503: not ready" in problem
        liveness.ready = True
        assert await asyncio.to_thread(checked, url) == []
        assert await asyncio.to_thread(installation_check.main, [url]) == 0
        assert "alive and ready" in capsys.readouterr().out


async def test_another_server_does_not_pass() -> None:
    async def other(_: web.Request) -> web.Response:
        return web.Response(text="hello")

    async with serve([web.get("/{path}", other)], 0, host="127.0.0.1") as port:
        problems = await asyncio.to_thread(checked, f"http://127.0.0.1:{port}")
    assert [problem.partition(": ")[2].partition(": ")[0] for problem in problems] == [
        f"the answer does not contain {words!r}" for words in installation_check.EXPECTED.values()
    ]


async def test_it_tries_until_the_deadline_and_then_fails(capsys: pytest.CaptureFixture[str]) -> None:
    (port,) = free_ports(1, random.Random())
    url = f"http://127.0.0.1:{port}"
    paused = []
    now = iter([0.0, 1.0, 2.0])
    problems = installation_check.check(url, 2.0, lambda: next(now), paused.append)
    assert len(problems) == len(installation_check.EXPECTED)
    assert all("no answer" in problem for problem in problems)
    assert len(paused) == 2
    assert installation_check.main([url], deadline_s=0.0) == 1
    assert "read the log of its pod" in capsys.readouterr().err
    assert installation_check.main([]) == 2
