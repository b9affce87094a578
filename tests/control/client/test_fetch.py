"""`drl fetch` against a small API server whose pods run the real program, or send what they should not."""

from __future__ import annotations

import contextlib
import io
import json
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.client.fake_server import FakeServer, drl, run_program
from control.client.fake_websocket import FakeWebSocket
from control.client.test_logs import full_job, pod
from control.client.test_submit import deployment
from omni_operator.client import results
from omni_operator.client.archive import HEADER_LIMIT, MARKER, BrokenArchive, UnsafeArchive, unpack
from omni_operator.client.fetch_pod import render_fetch_pod
from omni_operator.client.pods import run_place

PODS = "/api/v1/namespaces/team/pods"
MADE = f"{PODS}/blue-fetch-x"
DONE = {"state": "Succeeded", "attempts": 1, "conditions": [{"type": "Succeeded", "status": "True", "reason": "R"}]}
SUCCESS = b'{"status": "Success"}'


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A run folder as a trainer leaves it."""
    root = tmp_path / "claim" / "blue"
    files = [
        "report.html", "train.log", "samples/step_000001/0.png", "tensorboard/events",
        *(f"checkpoints/{step}/{name}" for step in ("step_000001", "step_000002") for name in
          ("manifest.json", "lora/adapter.safetensors", "state/shard_0")),
        "checkpoints/step_000003/lora/adapter.safetensors",
    ]  # fmt: skip
    for name in files:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    (root / "report.html").write_bytes(b"x" * 300_000)
    (root / "passwd").symlink_to("/etc/passwd")
    return root


def sends(data: bytes, status: bytes | None = SUCCESS) -> Callable[[FakeWebSocket, list[str]], None]:
    def serve(web: FakeWebSocket, _: list[str]) -> None:
        web.send(1, data)
        if status is not None:
            web.send(3, status)
            web.close()

    return serve


def archive(*members: tuple[str, bytes | tarfile.TarInfo]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as made:
        for name, content in members:
            if isinstance(content, bytes):
                info = tarfile.TarInfo(name)
                info.size = len(content)
                made.addfile(info, io.BytesIO(content))
            else:
                content.name = name
                made.addfile(content)
    return file.getvalue()


def with_headers(headers: dict[str, str]) -> bytes:
    """An archive with a file that has extended headers of the PAX format."""
    file, info = io.BytesIO(), tarfile.TarInfo("a")
    info.size, info.pax_headers = 1, headers
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as made:
        made.addfile(info, io.BytesIO(b"x"))
    return file.getvalue()


def special(kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo()
    info.type, info.linkname = kind, target
    return info


@pytest.fixture
def running(server: FakeServer, run_folder: Path) -> FakeServer:
    """A running job with a trainer pod, and a rollout pod, which has no run folder."""
    server.jobs["blue"] = full_job({"state": "Running", "attempts": 1})
    rollout = pod("blue-a01-r0")
    rollout["metadata"]["labels"]["ray.io/group"] = "rollout"
    server.objects[PODS] = 200, {"items": [pod("blue-a01-h", "head"), rollout, pod("blue-a01-w0")]}
    server.sockets[f"{PODS}/blue-a01-w0/exec"] = run_program(run_folder)
    return server


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


RESULTS = {
    MARKER, "report.html", "train.log", "samples/step_000001/0.png", "checkpoints/step_000002/lora/adapter.safetensors",
}  # fmt: skip


def test_results_come_from_a_running_pod(running: FakeServer, kubeconfig: Path, tmp_path: Path) -> None:
    to = tmp_path / "results" / "blue"
    said = drl(kubeconfig, "fetch", "blue", f"--to={to}")
    assert said.exit_code == 0, said.output
    assert said.stdout == f"4 files of blue in {to}\nreport: {to / 'report.html'}\n"
    assert names(to) == RESULTS
    assert (to / "report.html").stat().st_size == 300_000
    assert running.posts == []
    (to / "train.log").unlink()
    told = json.loads(drl(kubeconfig, "fetch", "blue", f"--to={to}", "--checkpoints", "--json").stdout)
    states = {f"checkpoints/step_00000{step}/state/shard_0" for step in (1, 2)}
    assert states <= names(to)
    assert states | {"train.log"} <= set(told["files"])
    assert "checkpoints/step_000003/lora/adapter.safetensors" not in names(to), "it has no manifest: it is not complete"
    assert [path.name for path in to.parent.iterdir()] == ["blue"]


def test_no_command_runs_in_a_pod_of_another_ray_cluster(running: FakeServer, kubeconfig: Path, tmp_path: Path) -> None:
    running.objects[PODS][1]["items"].insert(0, pod("a-stray", attempt=7, cluster="other"))
    running.sockets[f"{PODS}/a-stray/exec"] = sends(archive(("stray", b"")))
    said = drl(kubeconfig, "fetch", "blue", f"--to={tmp_path / 'a'}")
    assert (said.exit_code, names(tmp_path / "a")) == (0, RESULTS), said.output


def test_files_of_others_are_not_overwritten(running: FakeServer, kubeconfig: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "report.html").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for name, said in (("mine", "has other files"), ("file", "is not a folder")):
        refused = drl(kubeconfig, "fetch", "blue", f"--to={tmp_path / name}")
        assert (refused.exit_code, said in refused.stderr) == (2, True)
    assert (tmp_path / "mine" / "report.html").read_text() == "mine"
    drl(kubeconfig, "fetch", "blue", f"--to={tmp_path / 'new'}")
    running.jobs["blue"]["metadata"]["uid"] = "later"
    another = drl(kubeconfig, "fetch", "blue", f"--to={tmp_path / 'new'}")
    assert (another.exit_code, "results of another job blue" in another.stderr) == (2, True)


def test_after_the_end_a_pod_that_mounts_the_claim_is_made_and_deleted(
    server: FakeServer, kubeconfig: Path, tmp_path: Path, run_folder: Path
) -> None:
    server.jobs["blue"] = full_job(DONE)
    server.objects[PODS] = 200, {"items": []}
    server.objects[MADE] = 200, {"metadata": {"name": "blue-fetch-x"}, "status": {"phase": "Running"}}
    server.sockets[f"{MADE}/exec"] = run_program(run_folder)
    said = drl(kubeconfig, "fetch", "blue", f"--to={tmp_path / 'a'}", "--image=rollout:1")
    assert (said.exit_code, names(tmp_path / "a")) == (0, RESULTS), said.output
    assert server.deletions == [(MADE, {"gracePeriodSeconds": 0})]
    server.sockets[f"{MADE}/exec"] = sends(b"", b'{"status": "Failure", "message": "exit code 1"}')
    assert drl(kubeconfig, "fetch", "blue", f"--to={tmp_path / 'b'}", "--image=rollout:1").exit_code == 1
    assert len(server.deletions) == 2, "deleted after a failure too"


RAYJOB = "/apis/ray.io/v1/namespaces/team/rayjobs/blue-a01"
DEPLOYMENTS = "/apis/apps/v1/deployments"


def rayjob(image: str, owner: str = "u") -> dict[str, Any]:
    """The RayJob of an attempt, whose trainer pods run this image."""
    groups = [
        {
            "groupName": group,
            "template": {"spec": {"containers": [{"name": "sidecar"}, {"name": "ray", "image": found}]}},
        }
        for group, found in (("rollout", "other:1"), ("trainer", image))
    ]
    meta = {"name": "blue-a01", "ownerReferences": [{"kind": "DiffusionRLJob", "uid": owner, "controller": True}]}
    return {"metadata": meta, "spec": {"rayClusterSpec": {"workerGroupSpecs": groups}}}


def test_the_pod_runs_the_image_of_the_job_of_its_attempt_or_of_its_operator(
    server: FakeServer, kubeconfig: Path, tmp_path: Path, run_folder: Path
) -> None:
    server.jobs["blue"] = full_job({**DONE, "children": {"rayJob": "blue-a01"}})
    server.objects[PODS] = 200, {"items": []}
    server.objects[MADE] = 200, {"metadata": {"name": "blue-fetch-x"}, "status": {"phase": "Running"}}
    server.sockets[f"{MADE}/exec"] = run_program(run_folder)

    def fetched(*options: str) -> str:
        said = drl(kubeconfig, "fetch", "blue", f"--to={tmp_path / 'a'}", *options)
        image = str(server.posts[-1]["spec"]["containers"][0]["image"])
        assert (said.exit_code, f"pod blue-fetch-x with image {image} mounts the claim" in said.stderr) == (0, True), (
            said.output
        )
        return image

    server.objects[DEPLOYMENTS] = 200, {"items": [deployment("omni", IMAGE="operator:1")]}
    server.objects[RAYJOB] = 200, rayjob("attempt:1")
    assert fetched() == "attempt:1"
    server.objects[RAYJOB] = 200, rayjob("attempt:1", owner="another")
    assert fetched() == "operator:1"
    server.objects[RAYJOB] = 403, {"message": "User u cannot get rayjobs"}
    assert fetched() == "operator:1"
    server.jobs["blue"]["spec"]["runtime"] = {"image": "job:1", "rayVersion": "2.60.0"}
    assert fetched() == "job:1"
    assert fetched("--image=given:1") == "given:1"


def test_no_pod_runs_an_image_of_what_may_not_be_the_operator(
    server: FakeServer, kubeconfig: Path, tmp_path: Path
) -> None:
    server.jobs["blue"] = full_job(DONE)
    server.objects[PODS] = 200, {"items": []}
    there = [deployment("a-tenant", IMAGE="evil:1"), deployment("omni-system", IMAGE="operator:1")]
    server.objects[DEPLOYMENTS] = 200, {"items": there}
    said = drl(kubeconfig, "fetch", "blue", f"--to={tmp_path / 'a'}")
    assert (said.exit_code, server.posts) == (1, []), said.output
    assert "2 Deployments may be the operator of namespace team: a-tenant/omni, omni-system/omni" in said.stderr
    assert "give --image IMAGE" in said.stderr


def test_a_pod_that_does_not_start_is_deleted_and_told(
    server: FakeServer, kubeconfig: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "START_SECONDS", 0.0)
    server.jobs["blue"] = full_job(DONE)
    server.objects[PODS] = 200, {"items": []}
    waits = {"name": "ray", "state": {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}}
    meta = {"name": "blue-fetch-x", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}
    server.objects[MADE] = 200, {"metadata": meta, "status": {"phase": "Pending", "containerStatuses": [waits]}}
    said = drl(kubeconfig, "fetch", "blue", f"--to={tmp_path / 'a'}", "--image=rollout:1")
    assert (said.exit_code, len(server.deletions), (tmp_path / "a").exists()) == (1, 1, False)
    told = "pod blue-fetch-x does not start: ErrImagePull: no such image"
    assert told in said.stderr
    server.deletion = 403, {"message": "User u cannot delete pods"}
    said = drl(kubeconfig, "fetch", "blue", f"--to={tmp_path / 'a'}", "--image=rollout:1")
    assert f"{told}; pod blue-fetch-x could not be deleted, delete it yourself: " in said.stderr


def test_without_pod_claim_or_image_the_reason_is_told(server: FakeServer, kubeconfig: Path, tmp_path: Path) -> None:
    server.jobs["blue"] = full_job(DONE)
    server.objects[PODS] = 200, {"items": []}
    said = drl(kubeconfig, "fetch", "blue", f"--to={tmp_path / 'a'}")
    assert (said.exit_code, "give --image IMAGE" in said.stderr) == (1, True)
    assert "the operator's default image is not known" in said.stderr
    assert server.posts == []
    server.jobs["blue"]["spec"]["backoffLimit"] = 0
    del server.jobs["blue"]["spec"]["checkpoint"]["claimName"]
    said = drl(kubeconfig, "fetch", "blue", f"--to={tmp_path / 'a'}")
    assert (said.exit_code, "no spec.checkpoint.claimName" in said.stderr) == (1, True)


def test_a_missing_run_folder_and_a_missing_right_are_told(
    running: FakeServer, kubeconfig: Path, tmp_path: Path
) -> None:
    path = f"{PODS}/blue-a01-w0/exec"
    running.sockets[path] = run_program(tmp_path / "none")
    said = drl(kubeconfig, "fetch", "blue", f"--to={tmp_path / 'a'}")
    assert (said.exit_code, "there is no run folder" in said.stderr) == (1, True), said.output
    del running.sockets[path]
    running.objects[path] = 403, {"message": "User u cannot get pods/exec"}
    said = drl(kubeconfig, "fetch", "blue", f"--to={tmp_path / 'a'}")
    assert said.exit_code == 1
    assert said.stderr.startswith(
        "exec in pod blue-a01-w0: User u cannot get pods/exec; ask for this right: docs/cli.md"
    )
    assert not (tmp_path / "a").exists()


def test_errors_of_a_pod_cannot_control_the_terminal(running: FakeServer, kubeconfig: Path, tmp_path: Path) -> None:
    def serve(web: FakeWebSocket, _: list[str]) -> None:
        web.send(2, "Traceback\n\x1b]0;title\x07 \x9b2J\x7fno numpy".encode())
        web.send(3, b'{"status": "Failure"}')
        web.close()

    running.sockets[f"{PODS}/blue-a01-w0/exec"] = serve
    said = drl(kubeconfig, "fetch", "blue", f"--to={tmp_path / 'a'}")
    assert said.stderr == "exec in pod blue-a01-w0: Traceback\n ]0;title   2J no numpy\n"


BAD = {
    "absolute": archive(("/etc/x", b"a")),
    "parent": archive(("a/../../x", b"a")),
    "symbolic link": archive(("a", special(tarfile.SYMTYPE, "/etc")), ("a/x", b"a")),
    "hard link": archive(("a", special(tarfile.LNKTYPE, "../x"))),
    "device": archive(("a", special(tarfile.CHRTYPE))),
    "pipe": archive(("a", special(tarfile.FIFOTYPE))),
    "folder": archive(("a", special(tarfile.DIRTYPE))),
    "twice": archive(("a", b"1"), ("a", b"2")),
    "twice by another spelling": archive(("a/b", b"1"), ("a/./b", b"2")),
    "marker": archive((MARKER, b"{}")),
    "marker by another spelling": archive((f"./{MARKER}", b"{}")),
    "folder of the marker's name": archive((f"{MARKER}/x", b"a")),
    "no name": archive((".", b"a")),
    "deep": archive(("a/" * 5000 + "x", b"a")),
}
BROKEN = {
    "file as a folder": archive(("a", b"1"), ("a/b", b"2")),
    "folder as a file": archive(("a/b", b"1"), ("a", b"2")),
    "sparse map": with_headers({"GNU.sparse.map": "a,b"}),
    "sparse size": with_headers({"GNU.sparse.size": "zz"}),
    "sparse data": with_headers({"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}),
    "time too large": with_headers({"mtime": "1e300"}),
    "time that is no number": with_headers({"mtime": "nan"}),
    "name with a null byte": with_headers({"path": "a\0b"}),
}


@pytest.mark.parametrize("name", BAD)
def test_an_unsafe_archive_leaves_nothing(name: str, running: FakeServer, kubeconfig: Path, tmp_path: Path) -> None:
    running.sockets[f"{PODS}/blue-a01-w0/exec"] = sends(BAD[name])
    before = names(tmp_path)
    said = drl(kubeconfig, "fetch", "blue", f"--to={tmp_path / 'out' / 'a'}")
    assert (said.exit_code, "unsafe archive, nothing was kept" in said.stderr) == (1, True), said.output
    assert names(tmp_path) == before


@pytest.mark.parametrize("name", BROKEN)
def test_a_malformed_archive_leaves_nothing(name: str, running: FakeServer, kubeconfig: Path, tmp_path: Path) -> None:
    running.sockets[f"{PODS}/blue-a01-w0/exec"] = sends(BROKEN[name])
    before = names(tmp_path)
    said = drl(kubeconfig, "fetch", "blue", f"--to={tmp_path / 'out' / 'a'}")
    assert (said.exit_code, said.stderr.startswith("pod blue-a01-w0: the archive ")) == (1, True), said.output
    assert names(tmp_path) == before


@given(
    st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), min_size=1, max_size=8), st.sampled_from([*BROKEN])
)
def test_any_bytes_are_an_archive_or_an_error_of_one(changes: list[tuple[int, int]], name: str) -> None:
    data = bytearray(BROKEN[name])
    for place, value in changes:
        data[place % len(data)] = value
    for start in range(0, len(data), tarfile.BLOCKSIZE):  # with the checksum that a header needs
        block = data[start : start + tarfile.BLOCKSIZE]
        if block[257:262] == b"ustar":
            data[start + 148 : start + 156] = b"%06o\0 " % tarfile.calc_chksums(block)[0]
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(UnsafeArchive, BrokenArchive):
        unpack(io.BytesIO(data), Path(folder))


class Endless:
    """The begin of an archive, and then the same bytes for ever."""

    def __init__(self, begin: bytes, rest: bytes) -> None:
        self.begin, self.rest, self.sent = begin, rest, 0

    def read(self, size: int) -> bytes:
        self.sent += size
        assert self.sent < 16 * HEADER_LIMIT, "a header without an end is read into memory"
        data, self.begin = self.begin[:size], self.begin[size:]
        return data + self.rest * ((size - len(data)) // len(self.rest))


def header(kind: bytes, size: int) -> bytes:
    info = tarfile.TarInfo("a")
    info.type, info.size = kind, size
    return info.tobuf(tarfile.USTAR_FORMAT)


LARGE = header(tarfile.REGTYPE, 3 * HEADER_LIMIT) + b"x" * 3 * HEADER_LIMIT
SPARSE = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "b", "GNU.sparse.realsize": "1"}
# The map of a sparse file is in its content, and ends where it says itself.
MAP = with_headers(SPARSE)[: 3 * tarfile.BLOCKSIZE] + b"999999999\n1\n2\n3\n"


@pytest.mark.parametrize("first", [b"", LARGE])
@pytest.mark.parametrize(
    ("begin", "rest"),
    [*((header(kind, 2**32), b"a") for kind in (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME)),
     (MAP, b"1\n")],
)  # fmt: skip
def test_a_header_without_an_end_is_refused(first: bytes, begin: bytes, rest: bytes, tmp_path: Path) -> None:
    """A pod that is not trusted would fill the memory of who fetches from it."""
    with pytest.raises(UnsafeArchive, match="a header has more than 1048576 bytes"):
        unpack(Endless(first + begin, rest), tmp_path)


def test_files_are_told_apart_in_time_that_grows_with_their_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = 0
    equal = PurePosixPath.__eq__

    def count(one: PurePosixPath, other: object) -> bool:
        nonlocal compared
        compared += 1
        return equal(one, other)

    monkeypatch.setattr(PurePosixPath, "__eq__", count)
    files = 300
    assert len(unpack(io.BytesIO(archive(*((f"{number}", b"") for number in range(files)))), tmp_path)) == files
    assert compared < files


def test_a_name_that_is_not_utf_8_is_printed(running: FakeServer, kubeconfig: Path, tmp_path: Path) -> None:
    running.sockets[f"{PODS}/blue-a01-w0/exec"] = sends(archive(("./a\udcff\x1b", b"x")))
    said = drl(kubeconfig, "fetch", "blue", f"--to={tmp_path / 'out'}", "--json")
    assert said.exit_code == 0, said.output
    assert said.stdout.isascii() and said.stdout.rstrip("\n").isprintable()
    assert json.loads(said.stdout)["files"] == ["a\udcff\x1b"]


@pytest.mark.parametrize("end", [0, 100, 512, 600, 1024])
def test_an_archive_that_ends_too_early_leaves_nothing(
    end: int, running: FakeServer, kubeconfig: Path, tmp_path: Path
) -> None:
    whole = archive(("a", b"x" * 512), ("b", b"x" * 512))
    running.sockets[f"{PODS}/blue-a01-w0/exec"] = sends(whole[:end], None)
    said = drl(kubeconfig, "fetch", "blue", f"--to={tmp_path / 'out'}")
    assert (said.exit_code, "the connection broke" in said.stderr) == (1, True), said.output
    assert not (tmp_path / "out").exists()


def test_a_command_that_fails_after_a_whole_archive_leaves_nothing(
    running: FakeServer, kubeconfig: Path, tmp_path: Path
) -> None:
    failure = b'{"status": "Failure", "message": "exit code 137"}'
    running.sockets[f"{PODS}/blue-a01-w0/exec"] = sends(archive(("a", b"x")), failure)
    said = drl(kubeconfig, "fetch", "blue", f"--to={tmp_path / 'out'}")
    assert (said.exit_code, said.stderr) == (1, "exec in pod blue-a01-w0: exit code 137\n")
    assert not (tmp_path / "out").exists()


def test_permissions_of_the_archive_are_not_kept(tmp_path: Path) -> None:
    info = tarfile.TarInfo("a")
    info.mode, info.uid = 0o6777, 0
    assert unpack(io.BytesIO(archive(("a", info))), tmp_path) == ["a"]
    assert (tmp_path / "a").stat().st_mode & 0o7022 == 0
    with pytest.raises(BrokenArchive):
        unpack(io.BytesIO(b"no archive" * 100), tmp_path)
    with pytest.raises(UnsafeArchive):
        unpack(io.BytesIO(BAD["parent"]), tmp_path)


def test_the_pod_that_reads_a_claim_is_restricted() -> None:
    body = full_job(DONE)
    place = run_place(body)
    assert place is not None
    made: dict[str, Any] = render_fetch_pod(body, place, "rollout:1")
    spec, container = made["spec"], made["spec"]["containers"][0]
    assert container["volumeMounts"] == [{"name": "runs", "mountPath": "/runs", "readOnly": True}]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert spec["automountServiceAccountToken"] is False
    assert "diffusionrl.io/job" not in made["metadata"]["labels"]
    assert made["metadata"]["ownerReferences"][0]["uid"] == "u"
