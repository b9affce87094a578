"""`drl fetch` against a small API server whose pods run the real program, or send what they should not."""

import json
from pathlib import Path
from typing import Any

import pytest

from control.client.archives import archive, names, sends
from control.client.fake_server import FakeServer, run_program
from control.client.fake_websocket import FakeWebSocket
from control.client.job_objects import DONE, MADE, PODS, full_job, pod
from control.client.test_submit import deployment
from omni_operator.client import fetched_results
from omni_operator.client.archive import MARKER
from omni_operator.client.fetch_pod import render_fetch_pod
from omni_operator.client.job_pods import run_place

RESULTS = {
    MARKER,
    "report.html",
    "train.log",
    "samples/step_000001/0.png",
    "checkpoints/step_000002/lora/adapter.safetensors",
}
BETWEEN = "adapters/step_000003"  # an adapter that was saved without a checkpoint


def test_results_come_from_a_running_pod(running: FakeServer, tmp_path: Path) -> None:
    to = tmp_path / "results" / "blue"
    fetched = running.drl("fetch", "blue", f"--to={to}")
    assert fetched.exit_code == 0, fetched.output
    assert fetched.stdout == f"4 files of blue in {to}\nreport: {to / 'report.html'}\n"
    assert names(to) == RESULTS
    assert (to / "report.html").stat().st_size == 300_000
    assert running.posts == []
    (to / "train.log").unlink()
    answer = json.loads(running.drl("fetch", "blue", f"--to={to}", "--checkpoints", "--json").stdout)
    states = {f"checkpoints/step_00000{step}/state/shard_0" for step in (1, 2)}
    assert states <= names(to)
    assert states | {"train.log"} <= set(answer["files"])
    assert "checkpoints/step_000003/lora/adapter.safetensors" not in names(to), "it has no manifest: it is not complete"
    assert [path.name for path in to.parent.iterdir()] == ["blue"]


def test_an_adapter_that_is_newer_than_the_checkpoints_comes_instead_of_theirs(
    running: FakeServer, tmp_path: Path, run_folder: Path
) -> None:
    for file in ("manifest.json", "lora/adapter.safetensors"):
        (run_folder / BETWEEN / file).parent.mkdir(parents=True, exist_ok=True)
        (run_folder / BETWEEN / file).write_text("x")
    assert running.drl("fetch", "blue", f"--to={tmp_path / 'a'}").exit_code == 0
    assert {name for name in names(tmp_path / "a") if "lora" in name} == {f"{BETWEEN}/lora/adapter.safetensors"}


def test_no_command_runs_in_a_pod_of_another_ray_cluster(running: FakeServer, tmp_path: Path) -> None:
    running.objects[PODS][1]["items"].insert(0, pod("a-stray", attempt=7, cluster="other"))
    running.sockets[f"{PODS}/a-stray/exec"] = sends(archive(("stray", b"")))
    fetched = running.drl("fetch", "blue", f"--to={tmp_path / 'a'}")
    assert (fetched.exit_code, names(tmp_path / "a")) == (0, RESULTS), fetched.output


def test_files_of_others_are_not_overwritten(running: FakeServer, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "report.html").write_text("mine")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    for name, reason in (("mine", "has other files"), ("file", "is not a folder"), ("link", "is not a folder")):
        assert reason in running.fails(2, "fetch", "blue", f"--to={tmp_path / name}")
    assert (tmp_path / "mine" / "report.html").read_text() == "mine"
    running.drl("fetch", "blue", f"--to={tmp_path / 'new'}")
    running.jobs["blue"]["metadata"]["uid"] = "later"
    assert "results of another job blue" in running.fails(2, "fetch", "blue", f"--to={tmp_path / 'new'}")


def test_after_the_end_a_pod_that_mounts_the_claim_is_made_and_deleted(ended: FakeServer, tmp_path: Path) -> None:
    fetched = ended.drl("fetch", "blue", f"--to={tmp_path / 'a'}", "--image=rollout:1")
    assert (fetched.exit_code, names(tmp_path / "a")) == (0, RESULTS), fetched.output
    assert ended.deletions == [(MADE, {"gracePeriodSeconds": 0})]
    ended.sockets[f"{MADE}/exec"] = sends(b"", b'{"status": "Failure", "message": "exit code 1"}')
    assert ended.drl("fetch", "blue", f"--to={tmp_path / 'b'}", "--image=rollout:1").exit_code == 1
    assert len(ended.deletions) == 2, "deleted after a failure too"


RAYJOB = "/apis/ray.io/v1/namespaces/team/rayjobs/blue-a01"
DEPLOYMENTS = "/apis/apps/v1/deployments"


def rayjob(image: str, owner: str = "u") -> dict[str, Any]:
    """The RayJob of an attempt, whose trainer pods run this image."""
    sidecar = {"name": "sidecar"}
    groups = [
        {"groupName": group, "template": {"spec": {"containers": [sidecar, {"name": "ray", "image": group_image}]}}}
        for group, group_image in (("rollout", "other:1"), ("trainer", image))
    ]
    meta = {"name": "blue-a01", "ownerReferences": [{"kind": "DiffusionRLJob", "uid": owner, "controller": True}]}
    return {"metadata": meta, "spec": {"rayClusterSpec": {"workerGroupSpecs": groups}}}


def test_the_pod_runs_the_image_of_the_job_of_its_attempt_or_of_its_operator(ended: FakeServer, tmp_path: Path) -> None:
    ended.jobs["blue"] = full_job({**DONE, "children": {"rayJob": "blue-a01"}})

    def fetched(*options: str) -> str:
        done = ended.drl("fetch", "blue", f"--to={tmp_path / 'a'}", *options)
        image = str(ended.posts[-1]["spec"]["containers"][0]["image"])
        assert done.exit_code == 0, done.output
        assert f"pod blue-fetch-x with image {image} mounts the claim" in done.stderr
        return image

    ended.objects[DEPLOYMENTS] = 200, {"items": [deployment("omni", IMAGE="operator:1")]}
    ended.objects[RAYJOB] = 200, rayjob("attempt:1")
    assert fetched() == "attempt:1"
    ended.objects[RAYJOB] = 200, rayjob("attempt:1", owner="another")
    assert fetched() == "operator:1"
    ended.objects[RAYJOB] = 403, {"message": "User u cannot get rayjobs"}
    assert fetched() == "operator:1"
    ended.jobs["blue"]["spec"]["runtime"] = {"image": "job:1", "rayVersion": "2.60.0"}
    assert fetched() == "job:1"
    assert fetched("--image=given:1") == "given:1"


def test_no_pod_runs_an_image_of_what_may_not_be_the_operator(ended: FakeServer, tmp_path: Path) -> None:
    operators = [deployment("a-tenant", IMAGE="evil:1"), deployment("omni-system", IMAGE="operator:1")]
    ended.objects[DEPLOYMENTS] = 200, {"items": operators}
    refused = ended.drl("fetch", "blue", f"--to={tmp_path / 'a'}")
    assert (refused.exit_code, ended.posts) == (1, []), refused.output
    assert "2 Deployments may be the operator of namespace team: a-tenant/omni, omni-system/omni" in refused.stderr
    assert "give --image IMAGE" in refused.stderr


def test_a_pod_that_does_not_start_is_deleted_and_told(
    ended: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetched_results, "START_SECONDS", 0.05)
    monkeypatch.setattr(fetched_results, "POLL_SECONDS", 0.02)
    waits = {"name": "ray", "state": {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}}
    meta = {"name": "blue-fetch-x", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}
    ended.objects[MADE] = 200, {"metadata": meta, "status": {"phase": "Pending", "containerStatuses": [waits]}}
    failed = ended.drl("fetch", "blue", f"--to={tmp_path / 'a'}", "--image=rollout:1")
    assert (failed.exit_code, len(ended.deletions), (tmp_path / "a").exists()) == (1, 1, False)
    cause = "pod blue-fetch-x does not start: ErrImagePull: no such image"
    assert cause in failed.stderr
    waits_for = "note: pod blue-fetch-x does not run yet: ErrImagePull: no such image; waiting up to "
    assert failed.stderr.count(waits_for) == 1, "told at once, and once"
    ended.deletion = 403, {"message": "User u cannot delete pods"}
    failed = ended.drl("fetch", "blue", f"--to={tmp_path / 'a'}", "--image=rollout:1")
    assert f"{cause}; pod blue-fetch-x could not be deleted, delete it yourself: " in failed.stderr


def test_without_pod_claim_or_image_the_reason_is_told(ended: FakeServer, tmp_path: Path) -> None:
    failed = ended.drl("fetch", "blue", f"--to={tmp_path / 'a'}")
    assert (failed.exit_code, "give --image IMAGE" in failed.stderr) == (1, True)
    assert "the operator's default image is not known" in failed.stderr
    assert ended.posts == []
    ended.jobs["blue"]["spec"]["backoffLimit"] = 0
    del ended.jobs["blue"]["spec"]["checkpoint"]["claimName"]
    assert "no spec.checkpoint.claimName" in ended.fails(1, "fetch", "blue", f"--to={tmp_path / 'a'}")


def test_a_missing_run_folder_and_a_missing_right_are_told(running: FakeServer, tmp_path: Path) -> None:
    path = f"{PODS}/blue-a01-w0/exec"
    running.sockets[path] = run_program(tmp_path / "none")
    assert "there is no run folder" in running.fails(1, "fetch", "blue", f"--to={tmp_path / 'a'}")
    del running.sockets[path]
    running.objects[path] = 403, {"message": "User u cannot get pods/exec"}
    message = running.fails(1, "fetch", "blue", f"--to={tmp_path / 'a'}")
    right = "User u cannot get pods/exec; ask for this right: docs/reference/cli.md"
    assert message.startswith(f"exec in pod blue-a01-w0: {right}")
    assert not (tmp_path / "a").exists()


def test_errors_of_a_pod_cannot_control_the_terminal(running: FakeServer, tmp_path: Path) -> None:
    def serve(web: FakeWebSocket, _: list[str]) -> None:
        web.send(2, "Traceback\n\x1b]0;title\x07 \x9b2J\x7fno numpy".encode())
        web.send(3, b'{"status": "Failure"}')
        web.close()

    running.sockets[f"{PODS}/blue-a01-w0/exec"] = serve
    failed = running.drl("fetch", "blue", f"--to={tmp_path / 'a'}")
    assert failed.stderr == "exec in pod blue-a01-w0: Traceback\n ]0;title   2J no numpy\n"


def test_the_pod_that_reads_a_claim_is_restricted() -> None:
    body = full_job(DONE)
    run = run_place(body)
    fetch_pod: dict[str, Any] = render_fetch_pod(body, run, "rollout:1")
    spec = fetch_pod["spec"]
    container = fetch_pod["spec"]["containers"][0]
    assert container["volumeMounts"] == [{"name": "runs", "mountPath": "/runs", "readOnly": True}]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert spec["automountServiceAccountToken"] is False
    assert "diffusionrl.io/job" not in fetch_pod["metadata"]["labels"]
    assert fetch_pod["metadata"]["ownerReferences"][0]["uid"] == "u"
