"""Reports over HTTP: attribution to an attempt, limits, and answers."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp
import pytest

from control.handlers.report_server import AUDIENCE, GOOD, KEY, STEP, ReportServer, token
from omni_operator.cluster.kinds import JOBS
from omni_operator.handlers.http_server import serve
from omni_operator.reports.endpoint import BODY_LIMIT, POSTS_BURST
from omni_operator.reports.rate_limiter import KEYS_KEPT, RateLimiter
from omni_operator.reports.relay import ReportRelay
from omni_operator.status.observed.trainer_report import parse_event


@pytest.fixture
async def impatient_server() -> AsyncIterator[ReportServer]:
    """Closes connections after a second; a busy machine may take part of it between two steps of a test."""
    impatient = ReportServer()
    routes = impatient.endpoint(body_seconds=1.0).routes()
    async with serve(routes, 0, BODY_LIMIT, "127.0.0.1", idle=1.0, rest=0.2) as port:
        impatient.port = port
        yield impatient


async def test_a_report_is_stored_and_wakes_its_job(server: ReportServer) -> None:
    assert await server.post(GOOD, STEP) == (200, {})
    report = server.reports.newest(KEY, "u")
    assert (report.step, server.woken, server.counted) == (3, [KEY], ["taken"])


class Replicas:
    """Two replicas of the endpoint with one API server; `leader` and `url` are what the second one believes."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self.first = ReportServer()
        self.second = ReportServer()
        self.second.cluster = self.first.cluster
        self.first_leads = True
        self.url: str | None = None
        self.relays = (
            ReportRelay(session, lambda: self.first_leads, lambda: f"http://127.0.0.1:{self.second.port}"),
            ReportRelay(session, lambda: False, lambda: self.url),
        )


@pytest.fixture
async def replicas() -> AsyncIterator[Replicas]:
    async with aiohttp.ClientSession() as session:
        pair = Replicas(session)
        async with (
            serve(pair.first.endpoint(relay=pair.relays[0]).routes(), 0, BODY_LIMIT, "127.0.0.1") as first,
            serve(pair.second.endpoint(relay=pair.relays[1]).routes(), 0, BODY_LIMIT, "127.0.0.1") as second,
        ):
            pair.first.port = first
            pair.second.port = second
            pair.url = f"http://127.0.0.1:{first}"
            yield pair


async def test_a_replica_that_does_not_lead_passes_reports_on(replicas: Replicas) -> None:
    leader = replicas.first
    follower = replicas.second
    leader.reports.ask_checkpoint(KEY, leader.now)
    assert await follower.post(GOOD, STEP) == (200, {"checkpoint": True}), "the leader's answer"
    report = leader.reports.newest(KEY, "u")
    assert (report.step, leader.woken, leader.counted, follower.counted) == (3, [KEY], ["taken"], ["relayed"])
    assert (follower.reports.newest(KEY, "u"), follower.woken) == (None, [])
    assert (await follower.post(GOOD, {"event": "x"}))[0] == 400
    assert (await follower.post(token(AUDIENCE, word="forged"), STEP))[0] == 403
    assert leader.counted == ["taken"], "it sees nothing of these"


@pytest.mark.parametrize("fault", ["no leader", "dead leader", "both believe in the other"])
async def test_a_report_that_no_replica_takes_is_to_be_sent_again(replicas: Replicas, fault: str) -> None:
    if fault == "no leader":
        replicas.url = None
    elif fault == "dead leader":
        replicas.url = "http://127.0.0.1:1"
    else:
        replicas.first_leads = False
    answer = await replicas.second.post(GOOD, STEP)
    assert answer == (503, {"error": "no replica of the operator takes reports now; retry later"})
    assert replicas.first.reports.newest(KEY, "u") is None
    assert replicas.first.counted == (["unavailable"] if fault == "both believe in the other" else [])


async def test_the_answer_requests_a_checkpoint_until_there_is_one(server: ReportServer) -> None:
    server.reports.ask_checkpoint(KEY, server.now)
    assert await server.post(GOOD, STEP) == (200, {"checkpoint": True})
    checkpoint = {"event": "checkpoint", "path": "/c/step_000003"}
    for _ in range(2):
        assert await server.post(GOOD, checkpoint) == (200, {}), "it ends the request; the next one was not requested"
    assert await server.post(GOOD, STEP) == (200, {})


@pytest.mark.parametrize("reported", [1, 2, 10_000, 2**53])
async def test_a_report_counts_for_the_attempt_of_its_pod(server: ReportServer, reported: int) -> None:
    assert await server.post(GOOD, {**STEP, "attempt": reported}) == (200, {})
    second = server.token_of(server.attempt(2))
    assert await server.post(second, {**STEP, "attempt": 1, "step": 4}) == (200, {})
    assert await server.post(GOOD, {**STEP, "attempt": reported, "step": 5}) == (200, {"stale": True})
    report = server.reports.newest(KEY, "u")
    assert (report.attempt, report.step) == (2, 4)


async def test_a_report_of_a_deleted_job_does_not_count_for_a_new_one_of_its_name(server: ReportServer) -> None:
    assert await server.post(GOOD, STEP) == (200, {})
    server.submit("v")
    assert server.reports.newest(KEY, "v") is None
    assert (await server.post(GOOD, STEP))[0] == 403, "its pod belongs to the deleted job"


async def test_a_report_that_arrives_while_its_job_is_created_again_changes_nothing(server: ReportServer) -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b'{"event": "step",'
        while not server.reviews:  # the endpoint knows the job by now, and awaits the rest of the body
            await asyncio.sleep(0.01)
        server.submit("v")
        server.reports.take(KEY, "v", 1, parse_event(b'{"event": "step", "step": 9}'), server.now)
        yield b' "step": 3}'

    headers = {"Authorization": f"Bearer {GOOD}"}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"http://127.0.0.1:{server.port}/v1/reports", data=body(), headers=headers) as response,
    ):
        assert response.status == 404
    newest = server.reports.newest(KEY, "v")
    assert newest is not None and newest.step == 9


@pytest.mark.parametrize("body", ["", "[]", "null", "{", {"step": 1}, "[" * 50_000, b"\xff", {**STEP, "step": "3"}])
async def test_invalid_bodies_are_rejected(server: ReportServer, body: Any) -> None:
    assert (await server.post(GOOD, body))[0] == 400
    assert server.reports.newest(KEY, "u") is None


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "application/json; charset=klingon"},
        {"Content-Type": "application/json; charset=utf-16"},
        {"Content-Type": 'text/plain; charset="x y"'},
        {"Content-Encoding": "gzip"},
        {"Content-Encoding": "klingon"},
    ],
)
async def test_unknown_encodings_are_rejected(server: ReportServer, headers: dict[str, str]) -> None:
    assert (await server.post(GOOD, STEP, **headers))[0] == 400


async def test_the_size_of_a_body_is_limited(server: ReportServer) -> None:
    assert (await server.post(GOOD, "x" * (BODY_LIMIT + 1)))[0] == 413


async def test_a_report_of_a_deleted_job_is_not_found(server: ReportServer) -> None:
    server.cache.remove(JOBS, {"metadata": {"namespace": KEY[0], "name": KEY[1], "uid": "u"}})
    assert (await server.post(GOOD, STEP))[0] == 404
    assert server.reviews == 0


async def test_reports_of_one_job_are_limited(server: ReportServer) -> None:
    codes = Counter([(await server.post(GOOD, STEP))[0] for _ in range(POSTS_BURST + 20)])
    assert codes == {200: POSTS_BURST, 429: 20}
    assert len(server.woken) == POSTS_BURST
    server.now += timedelta(seconds=1)
    assert (await server.post(GOOD, STEP))[0] == 200


HEAD = f"POST /v1/reports HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {GOOD}\r\n"


@pytest.mark.slow  # waits for the timeouts of connections
@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        ("", ""),
        ("POST /v1/rep", ""),
        (HEAD, ""),
        (f"{HEAD}Content-Length: 90\r\n\r\n{{", "408"),
        (f"{HEAD}Content-Length: 16\r\n\r\n{json.dumps(STEP)[:1]}", "408"),
        ("POST /v1/reports HTTP/1.1\r\nHost: x\r\nContent-Length: 90\r\n\r\n{", "401"),
        ("GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n", "404"),
    ],
)
async def test_a_connection_that_sends_no_request_is_closed(
    impatient_server: ReportServer, sent: str, answer: str
) -> None:
    async def send() -> str:
        reader, writer = await asyncio.open_connection("127.0.0.1", impatient_server.port)
        writer.write(sent.encode())
        try:
            return (await reader.read()).decode()[9:12]  # until the server closes
        except ConnectionResetError:  # the server closed before it had read what was sent
            return ""
        finally:
            writer.close()

    async with asyncio.timeout(60):
        answers = await asyncio.gather(*(send() for _ in range(20)))
    assert answers == [answer] * 20
    assert await impatient_server.post(GOOD, STEP) == (200, {})


async def test_requests_that_end_early_and_tokens_of_other_bytes_are_not_logged(
    server: ReportServer, caplog: pytest.LogCaptureFixture
) -> None:
    odd = HEAD.encode().replace(GOOD.encode(), GOOD.encode() + b"\xff")
    for sent, answer in ((f"{HEAD}Content-Length: 90\r\n\r\n{{".encode(), b""), (odd + b"\r\n", b"HTTP/1.1 401")):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(sent)
        if sent.endswith(b"{"):
            while not server.reviews:  # then the endpoint awaits the rest of the body
                await asyncio.sleep(0.01)
            writer.write_eof()
        assert await reader.read(12) == answer
        writer.close()
    assert not caplog.records


async def test_requests_that_are_not_http_are_not_logged(
    server: ReportServer, caplog: pytest.LogCaptureFixture
) -> None:
    for sent in (b"\x00" * 100, f"{HEAD}Content-Length: -1\r\n\r\n".encode(), b"GET / HTTP/9.9\r\n\r\n"):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(sent)
        assert (await reader.read()).startswith(b"HTTP/1.0 400")
        writer.close()
    assert not caplog.records


def test_the_limiter_allows_a_burst_then_its_rate_and_forgets_old_keys() -> None:
    now = [datetime(2026, 1, 1, tzinfo=UTC)]
    limiter = RateLimiter(0.5, 3, lambda: now[0])

    def take() -> bool:
        if allowed := limiter.allows("a"):
            limiter.count("a")
        return allowed

    assert [take() for _ in range(5)] == [True, True, True, False, False]
    now[0] += timedelta(seconds=4)
    assert [take() for _ in range(3)] == [True, True, False]
    now[0] -= timedelta(days=1)  # a clock that is set back gives and takes nothing
    assert not take()
    now[0] += timedelta(seconds=4)
    assert [take() for _ in range(3)] == [True, True, False]
    now[0] += timedelta(seconds=6)
    limiter.count("b")
    assert list(limiter._used) == ["b"], "the other has all its events again"
    for key in range(2 * KEYS_KEPT):
        limiter.count(key)
    assert len(limiter._used) == KEYS_KEPT
