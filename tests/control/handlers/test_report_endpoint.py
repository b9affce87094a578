"""Reports over HTTP: authorization and answers."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp
import pytest

from omni_operator.api.names import report_audience
from omni_operator.cluster.errors import Unavailable
from omni_operator.cluster.fake import FakeCluster
from omni_operator.cluster.kinds import JOBS, PODS, Key
from omni_operator.cluster.object_cache import ObjectCache
from omni_operator.cluster.protocol import Identity
from omni_operator.handlers.http_server import serve
from omni_operator.report_endpoint import BODY_LIMIT, ReportAuthorizer, ReportEndpoint, ReportStore, job_of

KEY: Key = ("team-a", "red")
STEP = {"attempt": 1, "event": "step", "step": 3}
USER = "system:serviceaccount:team-a:default"


def token(*audiences: str, word: str = "sig") -> str:
    claims = base64.urlsafe_b64encode(json.dumps({"aud": list(audiences)}).encode()).decode().rstrip("=")
    return f"header.{claims}.{word}"


GOOD = token(report_audience(*KEY))


class ReportServer:
    """The endpoint with an in-memory API server."""

    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.cluster, self.cache, self.reports = FakeCluster(lambda: self.now), ObjectCache(), ReportStore()
        self.woken: list[Key] = []
        self.counted: list[str] = []
        self.port = 0
        job = {"metadata": {"namespace": KEY[0], "name": KEY[1], "uid": "u", "resourceVersion": "1"}}
        self.cache.put(JOBS, job)
        self.cluster.tokens[GOOD, report_audience(*KEY)] = Identity(USER, "red-worker")

    def endpoint(self) -> ReportEndpoint:
        gatekeeper = ReportAuthorizer(self.cluster, self.cache, lambda: self.now)
        return ReportEndpoint(
            self.reports, gatekeeper, self.cache, lambda: self.now, self.woken.append, self.counted.append
        )

    async def post(self, bearer: str | None, body: Any) -> tuple[int, dict[str, Any]]:
        headers = {"Authorization": f"Bearer {bearer}"} if bearer is not None else {}
        data = body if isinstance(body, (str, bytes)) else json.dumps(body)
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"http://127.0.0.1:{self.port}/v1/reports", data=data, headers=headers) as response,
        ):
            text = await response.text()
            return response.status, json.loads(text) if text.startswith("{") else {}


@pytest.fixture
async def server() -> AsyncIterator[ReportServer]:
    made = ReportServer()
    async with serve(made.endpoint().routes(), 0, BODY_LIMIT, "127.0.0.1") as port:
        made.port = port
        yield made


async def test_a_report_is_stored_and_wakes_its_job(server: ReportServer) -> None:
    assert await server.post(GOOD, STEP) == (200, {})
    report = server.reports.newest(KEY)
    assert report is not None
    assert (report.step, server.woken, server.counted) == (3, [KEY], ["taken"])


async def test_the_answer_requests_a_checkpoint_until_there_is_one(server: ReportServer) -> None:
    server.reports.ask_checkpoint(KEY, server.now)
    assert await server.post(GOOD, STEP) == (200, {"checkpoint": True})
    assert await server.post(GOOD, {"attempt": 1, "event": "checkpoint", "path": "/c/step_000003"}) == (200, {})
    assert await server.post(GOOD, STEP) == (200, {})


@pytest.mark.parametrize(
    ("bearer", "code"),
    [
        (None, 401), ("", 401), ("nonsense", 401), ("a.b.c", 401), (token("https://kubernetes.default.svc"), 401),
        (token(report_audience(*KEY), word="forged"), 403), (token(report_audience("team-a", "blue")), 403),
    ],
)  # fmt: skip
async def test_other_tokens_are_rejected(server: ReportServer, bearer: str | None, code: int) -> None:
    assert (await server.post(bearer, STEP))[0] == code
    assert server.reports.newest(KEY) is None


@pytest.mark.parametrize(
    "identity",
    [
        Identity("system:serviceaccount:team-b:default"), Identity("system:serviceaccount:team-a-b:default"),
        Identity("jane"), Identity(USER, "pod-of-another-job"),
    ],
)  # fmt: skip
async def test_other_identities_are_rejected(server: ReportServer, identity: Identity) -> None:
    labels = {"diffusionrl.io/job": "red", "diffusionrl.io/attempt": "1"}
    server.cache.put(PODS, {"metadata": {"namespace": "team-a", "name": "red-worker", "uid": "p", "labels": labels}})
    server.cluster.tokens[GOOD, report_audience(*KEY)] = identity
    assert (await server.post(GOOD, STEP))[0] == 403
    assert server.counted == ["denied"]


@pytest.mark.parametrize("body", ["", "[]", "null", "{", {"event": "step"}, "[" * 50_000])
async def test_invalid_bodies_are_rejected(server: ReportServer, body: Any) -> None:
    assert (await server.post(GOOD, body))[0] == 400


async def test_the_size_of_a_body_is_limited(server: ReportServer) -> None:
    assert (await server.post(GOOD, "x" * (BODY_LIMIT + 1)))[0] == 413


async def test_a_report_of_a_deleted_job_is_not_found(server: ReportServer) -> None:
    server.cache.remove(JOBS, {"metadata": {"namespace": KEY[0], "name": KEY[1], "uid": "u"}})
    assert (await server.post(GOOD, STEP))[0] == 404


async def test_token_reviews_are_cached_for_a_minute(server: ReportServer) -> None:
    for _ in range(50):
        await server.post(GOOD, STEP)
    assert server.cluster.counts() == {("create", "tokenreviews"): 1}
    server.now += timedelta(seconds=61)
    await server.post(GOOD, STEP)
    assert server.cluster.counts() == {("create", "tokenreviews"): 1}


async def test_without_the_api_server_the_answer_is_503(server: ReportServer) -> None:
    async def unavailable(token: str, audience: str) -> Identity | None:
        raise Unavailable("no answer")

    server.cluster.review_token = unavailable  # type: ignore[method-assign]
    assert (await server.post(GOOD, STEP))[0] == 503


def test_the_job_is_read_from_the_audience() -> None:
    assert job_of(GOOD) == KEY
    assert job_of(token("other", report_audience("a", "b"))) == ("a", "b")
    others = (report_audience("A/../B", "x"), report_audience("a", "b") + "/x", "")
    for bad in ("", "x", "a.b.c", token(), *map(token, others)):
        assert job_of(bad) is None
