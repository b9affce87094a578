"""A small API server, a kubeconfig for it, and a running job with a run folder."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from control.client.fake_server import FakeServer, run_program, serving
from control.client.job_objects import DONE, MADE, PODS, full_job, pod


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FakeServer]:
    fake = FakeServer()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "main",
        "contexts": [{"name": "main", "context": {"cluster": "c", "user": "u", "namespace": "team"}}],
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{fake.server_port}"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }
    fake.kubeconfig = tmp_path / "kubeconfig"
    fake.kubeconfig.write_text(json.dumps(config))
    with serving(fake):
        yield fake


@pytest.fixture
def kubeconfig(server: FakeServer) -> Path:
    return server.kubeconfig


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A run folder as a trainer leaves it."""
    root = tmp_path / "claim" / "blue"
    files = [
        "report.html",
        "train.log",
        "samples/step_000001/0.png",
        "tensorboard/events",
        *(
            f"checkpoints/{step}/{name}"
            for step in ("step_000001", "step_000002")
            for name in ("manifest.json", "lora/adapter.safetensors", "state/shard_0")
        ),
        "checkpoints/step_000003/lora/adapter.safetensors",
    ]
    for name in files:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    (root / "report.html").write_bytes(b"x" * 300_000)
    (root / "passwd").symlink_to("/etc/passwd")
    return root


@pytest.fixture
def running(server: FakeServer, run_folder: Path) -> FakeServer:
    """A running job with a trainer pod, and a rollout pod, which has no run folder."""
    server.jobs["blue"] = full_job({"state": "Running", "attempts": 1})
    rollout = pod("blue-a01-r0")
    rollout["metadata"]["labels"]["ray.io/group"] = "rollout"
    server.objects[PODS] = 200, {"items": [pod("blue-a01-h", "head"), rollout, pod("blue-a01-w0")]}
    server.sockets[f"{PODS}/blue-a01-w0/exec"] = run_program(run_folder)
    return server


@pytest.fixture
def ended(server: FakeServer, run_folder: Path) -> FakeServer:
    """A job that has succeeded, without pods; the pod that `drl fetch` creates runs."""
    server.jobs["blue"] = full_job(DONE)
    server.objects[PODS] = 200, {"items": []}
    server.objects[MADE] = 200, {"metadata": {"name": "blue-fetch-x"}, "status": {"phase": "Running"}}
    server.sockets[f"{MADE}/exec"] = run_program(run_folder)
    return server
