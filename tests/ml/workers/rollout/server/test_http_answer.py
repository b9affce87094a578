"""The middleware of answers over HTTP, around apps that answer in several ways."""

import asyncio
from typing import Any

import httpx2

from verl_omni.workers.rollout.vllm_rollout.server.http_answer import AnswerMiddleware, current_answer


async def answered(*chunks: bytes, versions: tuple[int, ...] = (), refusal: str | None = None) -> httpx2.Response:
    """The answer of an app that begins it, and generates in another task before each chunk."""

    async def generate() -> None:
        answer = current_answer.get()
        assert answer is not None
        answer.versions |= set(versions)
        answer.refusal = refusal

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
        for chunk in chunks:
            await asyncio.create_task(generate())
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body"})

    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(AnswerMiddleware(app)), base_url="http://a") as client:
        return await client.get("/")


async def test_a_stream_has_the_version_of_its_first_output() -> None:
    answer = await answered(b"one ", b"two", versions=(3,))
    assert (answer.status_code, answer.text) == (200, "one two")
    assert answer.headers["X-Weights-Version"] == "3" and answer.headers["Content-Type"] == "text/plain"


async def test_samples_of_several_versions_are_all_named_and_no_sample_has_none() -> None:
    assert (await answered(b"both", versions=(11, 3))).headers["X-Weights-Version"] == "3,11"
    assert "X-Weights-Version" not in (await answered()).headers


async def test_a_refused_stream_has_a_status_and_no_part_of_the_app_s_answer() -> None:
    answer = await answered(b"error", b"more", refusal="asleep")
    assert answer.status_code == 503 and answer.headers["Retry-After"] == "5"
    assert answer.json() == {"error": {"message": "asleep", "type": "Service Unavailable", "param": None, "code": 503}}
