"""`drl logs` against a small API server."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from control.client.fake_server import FakeServer, make_job, run_program
from control.client.job_objects import DONE, MADE, PODS, full_job, pod
from omni_operator.api.names import REWARD_GROUP, ROLLOUT_GROUP, TRAINER_GROUP
from omni_operator.client import pod_logs as logs_module
from omni_operator.client.job_pods import run_place
from omni_operator.status.observed.observation import HEAD


@pytest.fixture
def pods(server: FakeServer) -> FakeServer:
    """Two trainer pods, a rollout pod and a head with output."""
    server.jobs["blue"] = full_job({"state": "Running", "attempts": 1})
    bodies = [pod("blue-a01-h", "head"), pod("blue-a01-w1"), pod("blue-a01-w0"), pod("blue-a01-r0")]
    bodies[3]["metadata"]["labels"]["ray.io/group"] = "rollout"
    server.objects[PODS] = 200, {"items": bodies}
    server.texts = {
        f"{PODS}/{body['metadata']['name']}/log": [[f"I am {body['metadata']['name'][-2:]}"]] for body in bodies
    }
    return server


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs_module, "POLL_SECONDS", 0.2)


def test_the_output_of_all_trainer_pods_is_printed_with_their_names(pods: FakeServer) -> None:
    assert pods.drl("logs", "blue").stdout == "[blue-a01-w0] I am w0\n[blue-a01-w1] I am w1\n"
    assert pods.drl("logs", "blue", "--pod=blue-a01-w1", "--tail=3").stdout == "I am w1\n"
    assert pods.queries[-1] == {"container": "ray", "tailLines": "3"}
    assert pods.drl("logs", "blue", "--pod=head").stdout == "I am -h\n"
    assert pods.drl("logs", "blue", "--pod=rollout").stdout == "I am r0\n"
    assert [json.loads(line) for line in pods.drl("logs", "blue", "--json").stdout.splitlines()] == [
        {"pod": "blue-a01-w0", "text": "I am w0"},
        {"pod": "blue-a01-w1", "text": "I am w1"},
    ]
    assert "did you mean 'blue-a01-w" in pods.fails(2, "logs", "blue", "--pod=blue-a01-w2")


def test_a_pod_without_output_is_named_and_the_others_are_read(pods: FakeServer) -> None:
    del pods.texts[f"{PODS}/blue-a01-w0/log"]
    pods.objects[f"{PODS}/blue-a01-w0/log"] = 400, {"message": 'container "ray" is waiting to start: ErrImagePull'}
    logs = pods.drl("logs", "blue")
    assert (logs.exit_code, logs.stdout) == (0, "[blue-a01-w1] I am w1\n")
    assert logs.stderr.startswith("note: blue-a01-w0: ")
    assert "ErrImagePull" in logs.stderr


def test_without_the_right_to_read_output_there_is_an_error(pods: FakeServer) -> None:
    """A note alone would be a success without any output; --follow would wait for the end of the job."""
    for name in ("blue-a01-w0", "blue-a01-w1"):
        del pods.texts[f"{PODS}/{name}/log"]
        pods.objects[f"{PODS}/{name}/log"] = 403, {"message": 'User "u" cannot get resource "pods/log"'}
    for options in ((), ("--follow",)):
        logs = pods.drl("logs", "blue", *options)
        assert (logs.exit_code, logs.stdout) == (1, "")
        assert 'cannot get resource "pods/log"; ask for this right' in logs.stderr


def test_after_the_pods_are_gone_the_output_comes_from_the_claim(ended: FakeServer, tmp_path: Path) -> None:
    (tmp_path / "train.log").write_bytes(b"step 1\nstep 2\n\xff without an end")
    (tmp_path / "report.html").write_text("not sent")
    ended.sockets[f"{MADE}/exec"] = run_program(tmp_path)
    for options, lines in (((), 0), (("--follow",), 0), (("--tail=2", "--pod=trainer"), 1)):
        kept = ended.drl("logs", "blue", "--image=rollout:1", *options)
        printed = ["step 1", "step 2", "\ufffd without an end"][lines:]
        assert (kept.exit_code, kept.stdout.splitlines()) == (0, printed), kept.output
        assert kept.stderr == "note: no pod of blue runs: pod blue-fetch-x with image rollout:1 mounts the claim runs\n"
        assert ended.deletions.pop() == (MADE, {"gracePeriodSeconds": 0})
    kept = ended.drl("logs", "blue", "--image=rollout:1", "--tail=1", "--json")
    assert [json.loads(line) for line in kept.stdout.splitlines()] == [{"pod": None, "text": "\ufffd without an end"}]
    assert "only the trainer's output is kept" in ended.fails(1, "logs", "blue", "--pod=head")
    (tmp_path / "train.log").unlink()
    kept_in = "the trainer's output is in /runs/blue/train.log on the claim runs; drl fetch copies it"
    absent = ended.fails(1, "logs", "blue", "--image=rollout:1")
    assert absent.endswith(f"/runs/blue has no train.log; {kept_in}\n")
    ended.deletions.clear()
    ended.objects[PODS] = 403, {"message": "User u cannot list pods"}
    assert ended.drl("logs", "blue").exit_code == 1


def test_without_a_claim_or_an_attempt_no_pod_is_made(ended: FakeServer) -> None:
    unknown = ended.drl("logs", "blue")
    assert (unknown.exit_code, "give --image IMAGE" in unknown.stderr) == (1, True)
    assert "in /runs/blue/train.log on the claim runs" in unknown.stderr
    del ended.jobs["blue"]["spec"]["checkpoint"]["claimName"]
    ended.jobs["blue"]["spec"]["backoffLimit"] = 0
    assert "has no spec.checkpoint.claimName" in ended.drl("logs", "blue").stderr
    ended.jobs["blue"]["status"] = {"state": "Queued"}
    assert "run drl why blue" in ended.drl("logs", "blue").stderr
    assert ended.posts == []


@pytest.mark.slow
def test_following_continues_after_a_broken_connection_without_repeating_lines(pods: FakeServer) -> None:
    first, same, last = (f"2026-01-01T00:00:00.00000000{digit}Z" for digit in "122")  # two lines of the same time
    path = f"{PODS}/blue-a01-w0/log"
    pods.texts[path] = [
        [f"{first} one", f"{same} two", f"{last} three", None],
        [f"{same} two", f"{last} three", "2026-01-01T00:00:00.000000003Z four", None],
        [],
    ]
    pods.objects[PODS] = 200, {"items": [pod("blue-a01-w0")]}

    class Ends(list[Any]):
        """The job ends while the connection is broken, and the next one is slow: it is the reader that is awaited."""

        def pop(self, _: Any = 0) -> Any:
            if len(self) == 2:
                pods.jobs["blue"] = full_job(DONE)
                time.sleep(4 * logs_module.POLL_SECONDS)
            return super().pop(0)

    pods.texts[path] = Ends(pods.texts[path])
    followed = pods.drl("logs", "blue", "--follow", "--tail=9")
    assert followed.stdout.splitlines() == ["one", "two", "three", "four"], followed.output
    follows = [query for query in pods.queries if query.get("follow")]
    assert [query.get("sinceTime") for query in follows] == [None, same, "2026-01-01T00:00:00.000000003Z"]
    assert [query.get("tailLines") for query in follows] == ["9", None, None]


def test_following_survives_a_look_at_the_pods_that_is_not_answered(
    pods: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    pods.objects[PODS] = 200, {"items": [pod("blue-a01-w0")]}
    pods.texts[f"{PODS}/blue-a01-w0/log"] = [["2026-01-01T00:00:00.000000001Z one"]]
    answer = pods.reply
    looks = iter(range(100))

    def reply(target: str) -> tuple[int, dict[str, Any]]:
        if target.partition("?")[0] == PODS and (look := next(looks)):
            if look == 1:
                return 503, {}
            pods.jobs["blue"] = full_job(DONE)
        return answer(target)

    monkeypatch.setattr(pods, "reply", reply)
    followed = pods.drl("logs", "blue", "--follow")
    assert (followed.exit_code, followed.stdout) == (0, "one\n"), followed.output


def test_only_pods_of_the_attempts_ray_cluster_count(pods: FakeServer) -> None:
    """Other pods can have the same labels: pods of a deleted job of the same name, or any pod of the namespace."""
    loose, owned = pod("loose", attempt=9), pod("owned", attempt=8)
    del loose["metadata"]["ownerReferences"][0]
    owned["metadata"]["ownerReferences"][0]["controller"] = False
    others = [pod("stray", attempt=7, cluster="other"), pod("before", cluster="deleted"), loose, owned]
    pods.objects[PODS][1]["items"] += others
    assert pods.drl("logs", "blue").stdout == "[blue-a01-w0] I am w0\n[blue-a01-w1] I am w1\n"
    for name in ("stray", "before", "loose", "owned"):
        assert pods.drl("logs", "blue", f"--pod={name}").exit_code == 2
    pods.jobs["blue"]["status"] = {"state": "Starting", "attempts": 1}
    assert "blue is Starting and has no pods" in pods.fails(1, "logs", "blue")


def test_help_and_docs_name_every_role(server: FakeServer) -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    (row,) = (line for line in page.splitlines() if "`--pod NAME`" in line)
    help_text = server.drl("logs", "--help").stdout.partition("--pod")[2].partition("--tail")[0]
    for role in (HEAD, TRAINER_GROUP, ROLLOUT_GROUP, REWARD_GROUP):
        assert (role in help_text, f"`{role}`" in row) == (True, True), role


def test_a_job_of_another_version_has_no_known_place() -> None:
    assert run_place(make_job("blue")) is None
    run = run_place(full_job({}))
    assert (run.path, run.claim, run.mount) == ("/runs/blue", "runs", "/runs")
