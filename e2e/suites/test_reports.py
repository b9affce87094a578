"""Reports to a running operator: real tokens of pods, and senders who attack it."""

import asyncio
import json
import os
import resource
from collections import Counter

import aiohttp
import httpx2
import pytest

from e2e.cluster.api import Api
from e2e.cluster.control_plane import ControlPlane
from e2e.jobs import JobOnPlane
from e2e.operator_process import AGENT, RunningOperator
from omni_operator.handlers.http_server import PROBE_CONNECTIONS, REPORT_CONNECTIONS
from omni_operator.reports.authorizer import REJECTED_BURST, REVIEWS_AT_ONCE

pytestmark = pytest.mark.cluster
STEP = {"attempt": 1, "event": "step", "step": 3, "reward/mean": 0.25, "weights/version": 3, "samples": 96}


@pytest.fixture
def job(running: RunningOperator, api: Api, namespace: str) -> JobOnPlane:
    started = JobOnPlane(api, namespace, spec={"backoffLimit": 3})
    started.start()
    return started


def post(running: RunningOperator, bearer: str, body: object, **headers: str) -> int:
    url = f"http://127.0.0.1:{running.reports}/v1/reports"
    sent = {"Authorization": f"Bearer {bearer}", **headers}
    content = body if isinstance(body, bytes) else json.dumps(body)
    return httpx2.post(url, content=content, headers=sent, timeout=30, trust_env=False).status_code


def trainer(running: RunningOperator, job: JobOnPlane, number: int = 1) -> str:
    """The token of a trainer pod that the operator has seen."""
    token = job.report_token(job.add_trainer(number))
    job.await_status(
        "the operator to see the trainer pod", lambda _: post(running, token, {"event": "heartbeat"}) == 200
    )
    return token


def test_reports_need_a_token_of_one_of_the_pods(running: RunningOperator, api: Api, job: JobOnPlane) -> None:
    token = trainer(running, job)
    stray = api.post(
        f"/api/v1/namespaces/{job.namespace}/pods",
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "stray"},
            "spec": {"containers": [{"name": "main", "image": "rollout:1"}]},
        },
    )["metadata"]
    plain = f"/api/v1/namespaces/{job.namespace}/serviceaccounts/default/token"
    assert post(running, "nonsense", STEP) == 401
    assert post(running, api.post(plain, {"spec": {}})["status"]["token"], STEP) == 401
    assert post(running, token[:-8] + "AAAAAAAA", STEP) == 403
    assert post(running, job.report_token(None), STEP) == 403, "not bound to a pod"
    assert post(running, job.report_token((stray["name"], stray["uid"])), STEP) == 403
    assert post(running, job.report_token(None, "blue"), STEP) == 404
    for body in ({"event": "x"}, {**STEP, "step": "3"}, {**STEP, "reward/mean": 1e300}, b"\xff", b"[" * 60_000):
        assert post(running, token, body) == 400
    assert post(running, token, STEP, **{"Content-Type": "application/json; charset=klingon"}) == 400
    assert post(running, token, {**STEP, "message": "x" * 200_000}) == 413
    assert post(running, token, STEP) == 200
    job.await_condition("ProgressStalled", "False", "StepAdvancing")
    status = job.await_status("the step", lambda found: found.get("progress", {}).get("globalStep") == 3)
    assert (status["weights"]["trainerVersion"], status["usage"]["samples"]) == (3, 96)


def test_a_hostile_trainer_changes_only_what_its_own_attempt_reports(running: RunningOperator, job: JobOnPlane) -> None:
    token = trainer(running, job)
    for number in (2, 10_000, 2**53):
        assert post(running, token, {"attempt": number, "event": "step", "step": 4}) == 200
    assert post(running, token, {"event": "checkpoint", "path": "/c/step_" + "9" * 200}) == 200
    hostile = "\x1b[31m" + "naïve " * 2000
    for number in range(30):
        assert post(running, token, {"event": "warning", "reason": f"Flood{number}", "message": hostile}) == 200
    assert post(running, token, {"event": "error", "reason": "ChildDeleted", "message": hostile}) == 200
    job.end(1, "FAILED")
    job.run(2)
    job.await_condition("Ready", "True")
    status = job.status()
    assert [(failure["reason"], failure["counted"]) for failure in status["failures"]] == [("ApplicationError", True)]
    second = trainer(running, job, 2)
    assert post(running, second, {"attempt": 1, "event": "step", "step": 5}) == 200
    job.await_condition("ProgressStalled", "False", "StepAdvancing")
    assert job.await_events("TrainerWarning").count("TrainerWarning") == 1
    assert "unexpected error" not in running.log.read_text()


def test_forged_tokens_cost_few_reviews_and_keep_no_trainer_out(
    installed: ControlPlane, running: RunningOperator, job: JobOnPlane
) -> None:
    token = trainer(running, job)
    mark = installed.audit.mark()
    sources = [f"127.0.1.{number}" for number in range(1, 9)]
    forged = [f"{token[:-8]}{number:08d}" for number in range(400)]
    unbound = [job.report_token(None)[:-8] + f"{number:08d}" for number in range(100)]
    url = f"http://127.0.0.1:{running.reports}/v1/reports"

    async def flood(source: str, tokens: list[str]) -> list[int]:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(local_addr=(source, 0))) as session:

            async def send(bearer: str) -> int:
                headers = {"Authorization": f"Bearer {bearer}"}
                async with session.post(url, json={"event": "heartbeat"}, headers=headers) as answer:
                    return answer.status

            return [await send(bearer) for bearer in tokens]

    async def attack() -> tuple[Counter[int], list[int]]:
        floods = [flood(source, [*forged[offset::8], *unbound[offset::8]]) for offset, source in enumerate(sources)]
        attackers = asyncio.gather(*floods)
        real = await flood("127.0.2.1", [token] * 20)
        return Counter(code for codes in await attackers for code in codes), real

    codes, real = asyncio.run(attack())
    assert real == [200] * 20
    assert set(codes) == {403, 429}
    reviews = installed.audit.settled(Counter(), user_agent=AGENT, since=mark)["create", "tokenreviews"]
    assert 1 <= reviews <= len(sources) * REJECTED_BURST + REVIEWS_AT_ONCE + 2
    second = JobOnPlane(job.api, job.namespace, "blue")
    second.submit()
    second.await_attempt(1)


def test_half_sent_requests_do_not_keep_a_trainer_out(running: RunningOperator, job: JobOnPlane) -> None:
    token = trainer(running, job)

    async def attack() -> None:
        opened = [await asyncio.open_connection("127.0.0.1", port) for port in (running.reports, running.http) * 150]
        for _, writer in opened:
            writer.write(b"POST /v1/reports HTTP/1.1\r\nHost: x\r\nContent-")
        try:
            assert await asyncio.to_thread(post, running, token, STEP) == 200
            assert (await asyncio.to_thread(running.page, "/healthz")).status_code == 200
        finally:
            for _, writer in opened:
                writer.close()

    asyncio.run(attack())


def test_a_flood_of_connections_keeps_no_trainer_out_and_takes_no_descriptor_from_the_operator(
    running: RunningOperator, job: JobOnPlane
) -> None:
    """Within the 1024 descriptors that many container runtimes let a process open."""
    pid = running.process.pid
    token = trainer(running, job)
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (1024, before[1]))
    flooded = ((running.reports, 2 * REPORT_CONNECTIONS), (running.http, 8 * PROBE_CONNECTIONS))

    async def attack() -> None:
        opened: list[asyncio.StreamWriter] = []
        try:
            for port, count in flooded:
                for number in range(count):
                    source = f"127.0.1.{number % 3 + 1}", 0
                    opened.append((await asyncio.open_connection("127.0.0.1", port, local_addr=source))[1])
            assert len(await asyncio.to_thread(os.listdir, f"/proc/{pid}/fd")) < 1024 - 128
            for number in range(5):
                assert (await asyncio.to_thread(running.page, "/healthz")).status_code == 200
                assert await asyncio.to_thread(post, running, token, {**STEP, "step": 4 + number}) == 200
        finally:
            for writer in opened:
                writer.close()

    try:
        asyncio.run(attack())
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
    job.await_status("the last step", lambda found: found["progress"].get("globalStep") == 8)
    assert "Too many open files" not in running.log.read_text()
