"""What a trainer posts to the operator, over a real HTTP client; a run never waits for it and never fails for it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from verl_omni.trainer import operator_reporter
from verl_omni.trainer.operator_reporter import OperatorReporter
from verl_omni.trainer.run_folder import RunFolder


@pytest.fixture
def token(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text("first\n")
    return file


def reporter(token: Path, answer: Callable[[httpx.Request], httpx.Response]) -> OperatorReporter:
    return OperatorReporter("http://operator/v1/reports", token, 2, transport=httpx.MockTransport(answer))


def test_every_event_is_posted_in_order_with_the_attempt_and_the_token_of_now(token: Path, tmp_path: Path) -> None:
    seen: list[tuple[str, dict[str, object]]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append((request.headers["Authorization"], json.loads(request.content)))
        token.write_text("renewed\n")
        return httpx.Response(200, json={})

    with reporter(token, answer) as made:
        folder = RunFolder(tmp_path / "run", made.post)
        folder.event("phase", text="starting Ray")
        folder.step({"step": 3, "reward/mean": 0.5}, eta_s=4.0, samples=96)
    assert [header for header, _ in seen] == ["Bearer first", "Bearer renewed"]
    assert [body for _, body in seen] == [
        {"attempt": 2, "event": "phase", "text": "starting Ray"},
        {"attempt": 2, "event": "step", "step": 3, "reward/mean": 0.5, "eta_s": 4.0, "samples": 96},
    ]
    lines = (tmp_path / "run" / "progress.jsonl").read_text().splitlines()
    assert [{"attempt": 2, **json.loads(line)} for line in lines] == [body for _, body in seen]


def test_a_checkpoint_request_of_the_operator_is_returned_once(token: Path) -> None:
    with reporter(token, lambda request: httpx.Response(200, json={"checkpoint": True})) as made:
        made.post({"event": "phase"})
    assert made.checkpoint_wanted()
    assert not made.checkpoint_wanted()


@pytest.mark.parametrize("fault", ["refused", "unreachable", "no token", "no JSON"])
def test_a_failing_post_is_logged_once_and_the_run_continues(
    token: Path, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    posts: list[int] = []

    def answer(request: httpx.Request) -> httpx.Response:
        posts.append(1)
        if fault == "unreachable":
            raise httpx.ConnectError("connection refused")
        return httpx.Response(403 if fault == "refused" else 200, text="no")

    if fault == "no token":
        token.unlink()
    with reporter(token, answer) as made:
        for _ in range(3):
            made.post({"event": "phase"})
    assert len(posts) == (0 if fault == "no token" else 3)
    assert len([record for record in caplog.records if "could not be reported" in record.message]) == 1


def test_posting_does_not_wait_for_an_operator_that_does_not_answer(token: Path) -> None:
    answered = threading.Event()
    seen: list[int] = []

    def answer(request: httpx.Request) -> httpx.Response:
        answered.wait(30)
        seen.append(json.loads(request.content)["step"])
        return httpx.Response(200, json={})

    with reporter(token, answer) as made:
        for step in range(operator_reporter.QUEUE_SIZE + 50):
            made.post({"event": "step", "step": step})
        answered.set()
    assert seen == sorted(seen) and seen[-1] == operator_reporter.QUEUE_SIZE + 49, "the newest are kept"
    assert len(seen) <= operator_reporter.QUEUE_SIZE + 1


def test_without_the_variables_nothing_is_posted(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DIFFUSIONRL_REPORT_URL", "DIFFUSIONRL_REPORT_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    with operator_reporter.from_environment() as made:
        made.post({"event": "phase"})
        assert not made.checkpoint_wanted()
