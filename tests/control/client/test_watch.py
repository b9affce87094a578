"""`drl watch` against a small API server whose job changes with every request."""

import json
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from control.client.fake_server import EVENTS, PATH, FakeServer, make_job
from control.client.job_objects import EXAMPLE, event
from omni_operator.cli.local.progress_display import make_display
from omni_operator.cli.on_cluster import watch
from omni_operator.client import Client
from omni_operator.client import jobs as jobs_module
from omni_operator.client.jobs import _job
from omni_operator.client.kubernetes_events import parse_event, sort_events


def warning(reason: str, message: str = "a\n b:key:") -> dict[str, Any]:
    return event(reason, "DiffusionRLJob", "blue", message)


def status(state: str, step: int | None = None, attempts: int = 1) -> dict[str, Any]:
    fields: dict[str, Any] = {"state": state, "attempts": attempts, "conditions": []}
    if step is not None:
        fields["progress"] = {"globalStep": step, "totalSteps": 3, "reward": 0.5, "estimatedRemainingSeconds": 9}
    if state in ("Succeeded", "Failed"):
        fields["conditions"] = [{"type": state, "status": "True", "reason": "OutOfMemory"}]
    return fields


Tell = Callable[..., None]


class Story:
    """Answers to requests for a job, one after the other; the last one stays."""

    def __init__(self, server: FakeServer, *answers: dict[str, Any] | int) -> None:
        self._answers: Iterator[dict[str, Any] | int] = iter(answers)
        self._server = server
        self._reply = server.reply

    def reply(self, target: str) -> tuple[int, dict[str, Any]]:
        if target == f"{PATH}/blue":
            answer = next(self._answers, None)
            if isinstance(answer, int):
                return answer, {"message": f"answer {answer}", "details": {"name": "blue"}}
            if answer is not None:
                uid = answer.get("uid", "uid-blue")
                metadata = {"name": "blue", "uid": uid}
                self._server.jobs["blue"] = {**make_job("blue"), "status": answer, "metadata": metadata}
        return self._reply(target)


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "POLL_SECONDS", 0.01)


@pytest.fixture
def tell(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> Tell:
    return lambda *answers: monkeypatch.setattr(server, "reply", Story(server, *answers).reply)


def test_a_job_is_followed_by_lines_to_its_end(server: FakeServer, tell: Tell) -> None:
    server.objects[EVENTS] = 200, {"items": [warning("Unschedulable"), warning("Retried")]}
    running = status("Running", 1)
    second = (status("Retrying", 1, attempts=2), status("Running", 2, 2), status("Succeeded", 3, 2))
    tell(status("Pending"), running, running, *second)
    watched = server.drl("watch", "blue")
    assert watched.exit_code == 0, watched.output
    assert watched.stdout.splitlines() == [
        "2026-01-01T00:00:00Z  Unschedulable: a b:key:",
        "2026-01-01T00:00:00Z  Retried: a b:key:",
        "Pending ...",
        "Running ...",
        "step 1/3  reward 0.500  weights v?  ETA 9s",
        "Retrying, attempt 2 ...",
        "Running, attempt 2 ...",
        "step 2/3  reward 0.500  weights v?  ETA 9s",
        "step 3/3  reward 0.500  weights v?  ETA 9s",
        "blue is Succeeded",
    ]


@pytest.mark.parametrize("terminal", [False, True])
def test_events_cannot_control_the_terminal(terminal: bool) -> None:
    screen = StringIO()
    with make_display("blue", Console(file=screen, force_terminal=terminal, width=80), plain=False) as display:
        before = len(screen.getvalue())
        shown = watch.DisplayView(display)
        shown.event(parse_event(warning("Warning", "\x1b]0;title\x07 \x9b2J")))
        ready = {"type": "Ready", "status": "False", "reason": "PodsNotReady", "message": "\x1b]0;title\x07"}
        shown.job(_job({**make_job("blue"), "status": {"state": "Running", "conditions": [ready]}}))
    text = screen.getvalue()[before:]
    assert "]0;title" in text and "\x1b]" not in text and "\x9b" not in text and "\x07" not in text


def test_json_has_a_line_for_each_change(server: FakeServer, tell: Tell) -> None:
    server.objects[EVENTS] = 200, {"items": [warning(f"Old{number}") for number in range(9)]}
    tell(status("Running", 1), status("Running", 1), status("Failed", 1))
    watched = server.drl("watch", "blue", "--json")
    lines = [json.loads(line) for line in watched.stdout.splitlines()]
    assert [line["kind"] for line in lines] == ["event"] * 5 + ["status"] * 2, "of nine events only the last are news"
    assert [lines[5][name] for name in ("state", "step", "reward")] == ["Running", 1, 0.5]
    assert lines[-1]["state"] == "Failed"
    assert (watched.exit_code, watched.stderr) == (1, "blue is Failed; run drl why blue\n")
    page = (Path(__file__).parents[3] / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    listed = page.partition("\n- `watch`: one object per line:")[2].partition("\n- ")[0]
    assert [name for line in lines for name in line if name != "kind" and f"`{name}`" not in listed] == []


def test_events_that_may_not_be_read_are_named_once(server: FakeServer, tell: Tell) -> None:
    server.objects[EVENTS] = 403, {"message": "User u cannot list events"}
    tell(status("Running", 1), status("Running", 2), status("Succeeded", 3))
    watched = server.drl("watch", "blue")
    assert watched.exit_code == 0
    assert watched.stderr.splitlines() == [
        "note: events are not shown: GET /api/v1/namespaces/team/events: User u cannot list events"
    ]


def test_a_cluster_that_does_not_answer_for_a_while_is_asked_again(
    server: FakeServer, tell: Tell, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell(status("Running", 1), 503, 429, 500, status("Succeeded", 3))
    assert server.drl("watch", "blue").exit_code == 0
    monkeypatch.setattr(jobs_module, "PATIENCE_SECONDS", 0.0)
    tell(status("Running", 1), *[503] * 50)
    assert "answer 503" in server.fails(1, "watch", "blue")
    tell(503)
    assert server.drl("watch", "blue").exit_code == 1, "the first request is not repeated"


def test_a_job_that_is_deleted_meanwhile_ends_the_watch(server: FakeServer, tell: Tell) -> None:
    tell(status("Running", 1), 404)
    gone = server.drl("watch", "blue")
    assert (gone.exit_code, gone.stderr.splitlines()[-1]) == (1, "blue was deleted")
    tell(status("Running", 1), {**status("Running", 2), "uid": "another"})
    again = server.drl("watch", "blue")
    assert (again.exit_code, again.stderr.splitlines()[-1]) == (1, "blue was deleted, and created again")


def test_ctrl_c_leaves_the_job_alone(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Client, "follow", interrupt)
    stopped = server.drl("watch", "blue")
    assert (stopped.exit_code, stopped.stderr) == (130, "note: blue goes on; drl watch blue shows it again\n")
    assert server.deletions == []


def test_the_bar_shows_state_and_numbers_in_one_line_on_a_narrow_terminal() -> None:
    file = StringIO()
    starting = {"type": "Ready", "status": "False", "reason": "PodsNotReady", "message": "2 of 3 pods are\nready"}
    with make_display("blue", Console(file=file, force_terminal=True, width=40), plain=False) as display:
        view = watch.DisplayView(display)
        for shown in ({"state": "Starting", "conditions": [starting]}, status("Running", 2)):
            view.job(_job({**make_job("blue"), "status": shown}))
            view.event(parse_event(warning("Retried")))  # draws the status again
    text = file.getvalue()
    assert "Starting: PodsNotReady: 2 of 3 pods a…" in text and "ready" not in text
    for part in ("Running", "2/3", "Retried: a b"):
        assert part in text


def test_submit_can_watch(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    watched: list[str] = []
    monkeypatch.setattr(
        "omni_operator.cli.on_cluster.submit.watch_job", lambda _, name, *, as_json: watched.append(name)
    )
    assert server.drl("submit", str(EXAMPLE), "--watch").exit_code == 0
    assert watched == ["red-grpo-cluster"]
    assert "--watch has no effect" in server.fails(2, "submit", str(EXAMPLE), "--watch", "--dry-run")


def test_events_of_one_second_are_in_their_order() -> None:
    bodies = [
        {"metadata": {"name": name}, "reason": name, "eventTime": f"2026-01-01T00:00:00.{fraction}Z"}
        for name, fraction in (("Succeeded", "900000"), ("Running", "100000"))
    ]
    assert [event.reason for event in sort_events(bodies)] == ["Running", "Succeeded"]


def test_times_of_events_come_from_either_api() -> None:
    new = {"metadata": {"name": "n"}, "eventTime": "2026-01-01T00:00:01.123456Z", "lastTimestamp": None}
    assert parse_event(new).time == "2026-01-01T00:00:01Z"
    again = {**new, "series": {"count": 4, "lastObservedTime": "2026-01-01T00:00:09.5Z"}}
    assert (parse_event(again).time, parse_event(again).count) == ("2026-01-01T00:00:09Z", 4)
