"""What a trainer posts to the operator, over a real HTTP client; a run never waits for it and never fails for it."""

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest

from verl_omni.trainer.run import operator_reporter
from verl_omni.trainer.run.operator_reporter import OperatorReporter
from verl_omni.trainer.run.run_folder import RunFolder


@pytest.fixture
def token(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text("first\n")
    return file


def reporter(token: Path, answer: Callable[[httpx2.Request], httpx2.Response]) -> OperatorReporter:
    return OperatorReporter("http://operator/v1/reports", token, 2, transport=httpx2.MockTransport(answer), pause=0.001)


def test_every_event_is_posted_in_order_with_the_attempt_and_the_token_of_now(token: Path, tmp_path: Path) -> None:
    seen: list[tuple[str, dict[str, object]]] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append((request.headers["Authorization"], json.loads(request.content)))
        token.write_text("renewed\n")
        return httpx2.Response(200, json={})

    with reporter(token, answer) as sender:
        folder = RunFolder(tmp_path / "run", sender.post)
        folder.event("phase", text="starting Ray")
        folder.step({"step": 3, "reward/mean": 0.5}, eta_s=4.0, samples=96)
    assert [header for header, _ in seen] == ["Bearer first", "Bearer renewed"]
    assert [body for _, body in seen] == [
        {"attempt": 2, "event": "phase", "text": "starting Ray"},
        {"attempt": 2, "event": "step", "step": 3, "reward/mean": 0.5, "eta_s": 4.0, "samples": 96, "unscored": 0},
    ]
    lines = (tmp_path / "run" / "progress.jsonl").read_text().splitlines()
    assert [{"attempt": 2, **json.loads(line)} for line in lines] == [body for _, body in seen]


def test_a_checkpoint_request_of_the_operator_is_returned_once(token: Path) -> None:
    with reporter(token, lambda request: httpx2.Response(200, json={"checkpoint": True})) as sender:
        sender.post({"event": "phase"})
    assert sender.checkpoint_wanted()
    assert not sender.checkpoint_wanted()


def test_a_checkpoint_request_that_arrives_while_the_trainer_asks_is_not_lost(token: Path) -> None:
    class Raced(threading.Event):
        """The operator's answer arrives between the look at the event and what follows it."""

        def is_set(self) -> bool:
            was_set = super().is_set()
            self.set()
            return was_set

    with reporter(token, lambda request: httpx2.Response(200, json={})) as sender:
        sender._checkpoint = Raced()
        assert not sender.checkpoint_wanted()
        sender._checkpoint.__class__ = threading.Event
        assert sender.checkpoint_wanted()


def test_the_next_accepted_event_has_the_largest_number_and_the_last_mapping(token: Path) -> None:
    seen: list[dict[str, object]] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append(json.loads(request.content))
        if len(seen) == 1:
            sender.note("queued", 9)  # while the event is under way
            return httpx2.Response(503)
        return httpx2.Response(200, json={})

    sender = reporter(token, answer)
    for number in (3, 7, 2):
        sender.note("queued", number)
    for versions in ({"10.0.0.1": 7, "10.0.0.2": 7}, {"10.0.0.1": 3}):
        sender.note("versions", versions)
    with sender:
        for step in (1, 2):
            sender.post({"event": "phase", "step": step})
    last = {"10.0.0.1": 3}
    noted = [(body["step"], body.get("queued"), body.get("versions")) for body in seen]
    assert noted == [(1, 7, last), (1, 9, last), (2, None, None)]


OTHER_ANSWERS = {"no JSON": "no", "a JSON list": "[]"}


@pytest.mark.parametrize(
    "fault", [401, 403, 404, 408, 429, 500, 503, "unreachable", "timeout", "no token", *OTHER_ANSWERS]
)
def test_an_event_that_is_not_accepted_is_posted_again_in_order(
    token: Path, fault: int | str, caplog: pytest.LogCaptureFixture
) -> None:
    posts: list[int] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        posts.append(json.loads(request.content)["step"])
        if len(posts) > 5:
            return httpx2.Response(200, json={})
        if isinstance(fault, int):
            return httpx2.Response(fault, text="no")
        if fault in OTHER_ANSWERS:
            return httpx2.Response(200, text=OTHER_ANSWERS[fault])
        raise httpx2.ReadTimeout("slow") if fault == "timeout" else httpx2.ConnectError("connection refused")

    if fault == "no token":
        token.unlink()
        posts.extend([1] * 5)
    with reporter(token, answer) as sender:
        for step in (1, 2, 3):
            sender.post({"event": "checkpoint", "step": step})
        if fault == "no token":
            while not caplog.records:  # it has tried
                time.sleep(0.001)
            token.write_text("late")
    assert posts == [1] * 6 + [2, 3]
    assert len([record for record in caplog.records if "could not be reported" in record.message]) == 1


@pytest.mark.parametrize("code", [400, 413])
def test_an_event_that_can_never_be_accepted_delays_no_other(token: Path, code: int) -> None:
    posts: list[int] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        posts.append(json.loads(request.content)["step"])
        return httpx2.Response(code if posts[-1] == 1 else 200, json={})

    with reporter(token, answer) as sender:
        for step in (1, 2):
            sender.post({"event": "step", "step": step})
    assert posts == [1, 2]


def test_the_operator_says_when_to_post_again(token: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    answers = iter([*("7", "9999", "soon", None), *[None] * 8])

    def pause(self: OperatorReporter, seconds: float) -> bool:
        pauses.append(seconds)
        return True

    monkeypatch.setattr(OperatorReporter, "_pause", pause)

    def answer(request: httpx2.Request) -> httpx2.Response:
        after = next(answers, "")
        if after == "":
            return httpx2.Response(200, json={})
        return httpx2.Response(429, headers={"Retry-After": after} if after else {})

    with OperatorReporter("http://operator", token, 1, httpx2.MockTransport(answer)) as sender:
        sender.post({"event": "checkpoint"})
    assert pauses == [7.0, 60.0, 2.0, 4.0, 8.0, *[15.0] * 7], "else they double"


def test_a_run_ends_although_the_operator_accepts_nothing(token: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    posts: list[int] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        posts.append(1)
        return httpx2.Response(503, headers={"Retry-After": "3600"})

    monkeypatch.setattr(operator_reporter, "POST_SECONDS", 0.05)
    with reporter(token, answer) as sender:
        sender.post({"event": "step"})
        sender.post({"event": "done"})
    sender._thread.join()
    assert posts, "it was tried"


def test_posting_does_not_wait_and_superseded_events_are_dropped(token: Path) -> None:
    first = threading.Event()
    answered = threading.Event()
    seen: list[tuple[str, int]] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        first.set()
        answered.wait(30)
        body = json.loads(request.content)
        seen.append((body["event"], body["step"]))
        return httpx2.Response(200, json={})

    with reporter(token, answer) as sender:
        sender.post({"event": "start", "step": 0})
        first.wait(30)
        for step in range(1, operator_reporter.QUEUE_SIZE):
            sender.post({"event": "checkpoint" if step % 50 == 0 else "step", "step": step})
        for step in range(1000, 1100):
            sender.post({"event": "step", "step": step})
        answered.set()
    assert [step for event, step in seen if event == "checkpoint"] == [50, 100, 150, 200, 250]
    assert seen[0] == ("start", 0) and seen[-1] == ("step", 1099), "the newest are kept"
    assert len(seen) == operator_reporter.QUEUE_SIZE
    assert [step for _, step in seen] == sorted(step for _, step in seen)


def test_without_the_variables_nothing_is_posted(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DIFFUSIONRL_REPORT_URL", "DIFFUSIONRL_REPORT_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    with operator_reporter.from_environment() as sender:
        sender.post({"event": "phase"})
        assert not sender.checkpoint_wanted()
