"""A small API server with jobs, and `drl` on it."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlsplit

from typer.testing import CliRunner, Result

from control.client.fake_websocket import FakeWebSocket
from omni_operator.cli.main import app
from omni_operator.client import Client

PATH = "/apis/diffusionrl.io/v1alpha1/namespaces/team/diffusionrljobs"
EVENTS = "/api/v1/namespaces/team/events"
CLUSTER = "uid-cluster"  # uid of the RayCluster of each job


def make_job(name: str) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": "False", "reason": "ClaimNotFound", "message": "no claim runs"}]
    status = {
        "state": "Starting",
        "reason": "ClaimNotFound",
        "conditions": conditions,
        "progress": {"summary": "3/10", "rewardSummary": "0.5"},
        "children": {"rayClusterUID": CLUSTER},
    }
    return {
        "metadata": {"name": name, "uid": f"uid-{name}"},
        "spec": {"suspend": False, "rollout": {"replicas": 2}, "checkpoint": {"claimName": "runs"}},
        "status": status,
    }


def owners(cluster: str = CLUSTER) -> list[dict[str, Any]]:
    """The owner references of a pod of a RayCluster."""
    return [{"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": "c", "uid": cluster, "controller": True}]


class FakeServer(ThreadingHTTPServer):
    """Jobs of the namespace `team`; `refusal` is the answer to everything, if set."""

    kubeconfig: Path  # of a user of this server

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.jobs = {name: make_job(name) for name in ("red-grpo", "blue")}
        self.patches: list[Any] = []
        self.deletions: list[Any] = []
        self.deletion: tuple[int, dict[str, Any]] | None = None  # the answer to deletions, if not the job
        self.refusal: tuple[int, dict[str, Any]] | None = None
        self.invalid: tuple[int, dict[str, Any]] | None = None  # the answer to patches, if not the changed job

        # Other answers, by path.
        self.objects: dict[str, tuple[int, dict[str, Any]]] = {EVENTS: (200, {"items": []})}
        # Answers that are text, by path, in the order of requests; the last one stays.
        self.texts: dict[str, list[list[str | None]]] = {}
        # What answers WebSockets, by path: called with the socket and the words of the query `command`.
        self.sockets: dict[str, Callable[[FakeWebSocket, list[str]], None]] = {}
        self.queries: list[dict[str, str]] = []
        self.posts: list[Any] = []

    def reply(self, target: str) -> tuple[int, dict[str, Any]]:
        path = urlsplit(target).path
        self.queries.append(dict(parse_qsl(urlsplit(target).query)))
        if self.refusal:
            return self.refusal
        if path in self.objects:
            return self.objects[path]
        if path == PATH:
            return 200, {"items": list(self.jobs.values())}
        name = path.removeprefix(f"{PATH}/")
        job = self.jobs.get(name)
        return (200, job) if job else (404, {"message": "not found", "details": {"name": name}})

    def drl(self, *arguments: str) -> Result:
        """Run `drl` for this server."""
        return drl(self.kubeconfig, *arguments)

    def fails(self, code: int, *arguments: str) -> str:
        """What `drl` prints to stderr when it ends with this exit code."""
        done = self.drl(*arguments)
        assert done.exit_code == code, done.output
        return done.stderr

    def client(self) -> Client:
        return Client.from_kubeconfig(str(self.kubeconfig))


class Handler(BaseHTTPRequestHandler):
    server: FakeServer
    protocol_version = "HTTP/1.1"
    # Head and body are two writes; the second would wait for the client's delayed acknowledgement of the first.
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        if "Upgrade" in self.headers and (serve := self.server.sockets.get(parts.path)):
            serve(FakeWebSocket(self), parse_qs(parts.query).get("command", []))
            return
        if texts := self.server.texts.get(parts.path):
            self.server.queries.append(dict(parse_qsl(parts.query)))
            self.answer_text(texts.pop(0) if len(texts) > 1 else texts[0])
            return
        self.answer(*self.server.reply(self.path))

    def answer_text(self, lines: list[str | None]) -> None:
        """The lines in chunks, as API servers send logs; None at the end: the connection breaks."""
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for line in lines:
            if line is None:
                self.close_connection = True
                return
            data = f"{line}\n".encode()
            self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
        self.wfile.write(b"0\r\n\r\n")

    def answer(self, code: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.posts.append(body)
        self.server.queries.append(dict(parse_qsl(urlsplit(self.path).query)))
        if body["kind"] == "Pod":
            pod = {**body, "metadata": {**body["metadata"], "name": f"{body['metadata']['generateName']}x"}}
            self.answer(201, pod)
            return
        name = body["metadata"]["name"]
        if self.server.refusal:
            self.answer(*self.server.refusal)
        elif name in self.server.jobs:
            self.answer(409, {"reason": "AlreadyExists", "message": f"{name} exists"})
        elif "dryRun" in urlsplit(self.path).query:
            self.answer(201, body)
        else:
            self.server.jobs[name] = body
            self.answer(201, body)

    def do_PATCH(self) -> None:
        patch = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        path = urlsplit(self.path).path
        if self.server.invalid:
            self.answer(*self.server.invalid)
            return
        self.server.patches.append((path, self.headers["Content-Type"], patch))
        self.server.jobs[path.rpartition("/")[2]]["spec"].update(patch["spec"])
        self.do_GET()

    def do_DELETE(self) -> None:
        options = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.deletions.append((self.path, options))
        if self.server.deletion:
            self.answer(*self.server.deletion)
        else:
            self.do_GET()

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        return


@contextmanager
def serving(server: FakeServer) -> Iterator[None]:
    """The server answers while the context is open; then it is closed."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def drl(kubeconfig: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments, f"--kubeconfig={kubeconfig}"])


def run_program(root: Path) -> Callable[[FakeWebSocket, list[str]], None]:
    """Runs the command, with this folder instead of the one in the pod."""

    def serve(web: FakeWebSocket, words: list[str]) -> None:
        assert words[:2] == ["python3", "-c"]
        command = [sys.executable, "-c", words[2], str(root), words[4]]
        done = subprocess.run(command, capture_output=True, check=False)
        for start in range(0, len(done.stdout), 50_000):
            web.send(1, done.stdout[start : start + 50_000])
        if done.stderr:
            web.send(2, done.stderr)
        failure = b'{"status": "Failure", "message": "exit code 1"}'
        web.send(3, failure if done.returncode else b'{"status": "Success"}')
        web.close()

    return serve
