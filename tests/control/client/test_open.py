"""`drl open` against a small API server that forwards to a small web server."""

import http.client
import json
import socket
from pathlib import Path
from typing import Any

import pytest

from control.client.fake_server import CLUSTER, FakeServer, owners, run_program
from control.client.fake_websocket import FakeWebSocket
from control.client.job_objects import PODS, full_job
from omni_operator.cli.on_cluster import open_dashboard
from omni_operator.client.archive import MARKER
from omni_operator.client.job_pods import find_dashboard, parse_pods
from omni_operator.client.port_forward import PortForwarder

FORWARD = f"{PODS}/blue-a01-h/portforward"
TOKEN = {"name": "RAY_AUTH_TOKEN", "valueFrom": {"secretKeyRef": {"name": "blue-a01-x", "key": "auth_token"}}}
PORT = (8265).to_bytes(2, "little")


def head(*env: dict[str, Any], ready: str = "True", cluster: str = CLUSTER) -> dict[str, Any]:
    labels = {"ray.io/node-type": "head", "diffusionrl.io/attempt": "1"}
    return {
        "metadata": {"name": "blue-a01-h", "labels": labels, "ownerReferences": owners(cluster)},
        "spec": {"containers": [{"name": "ray", "env": list(env)}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]},
    }


def serve_page(web: FakeWebSocket, _: list[str]) -> None:
    """A dashboard that answers one request and closes."""
    web.send(0, PORT)
    web.send(1, PORT)
    request = b""
    while b"\r\n\r\n" not in request and (message := web.receive()):
        request += message[1]
    body = b"x" * 100_000 + request.split()[1]
    web.send(0, b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    web.close()


def serve_error(web: FakeWebSocket, _: list[str]) -> None:
    web.send(0, PORT)
    web.send(1, PORT)
    web.send(1, b"connection refused")
    web.close()


def get(port: int, path: str) -> bytes:
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    client.request("GET", path)
    data = client.getresponse().read()
    client.close()
    return data


def test_connections_are_forwarded_to_the_head_pod(server: FakeServer) -> None:
    client = server.client()
    server.sockets[FORWARD] = serve_page
    messages: list[str] = []
    with PortForwarder(client.connection, "team", "blue-a01-h", 8265, 0, messages.append) as forwarder:
        port = int(forwarder.url.rpartition(":")[2])
        assert [get(port, path)[-2:] for path in ("/a", "/b", "/c")] == [b"/a", b"/b", b"/c"]
        server.sockets[FORWARD] = serve_error
        with pytest.raises((http.client.HTTPException, OSError)):
            get(port, "/d")
        server.sockets.clear()
        server.objects[FORWARD] = 403, {"message": "User u cannot create pods/portforward"}
        with pytest.raises((http.client.HTTPException, OSError)):
            get(port, "/e")
    assert [line for line in messages if "connection refused" in line], messages
    assert "User u cannot create pods/portforward" in messages[-1]
    with pytest.raises(ConnectionRefusedError):
        get(port, "/f")


def test_url_and_place_of_the_token_are_printed(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_dashboard, "_wait", lambda: None)
    server.objects[PODS] = 200, {"items": [head(TOKEN)]}
    opened = server.drl("open", "blue", "--port=0")
    assert opened.exit_code == 0, opened.output
    assert "Ray dashboard of blue: http://127.0.0.1:" in opened.stdout
    assert (
        "kubectl get secret blue-a01-x --namespace team --output jsonpath='{.data.auth_token}' | base64 --decode"
        in opened.stdout
    )
    answer = json.loads(server.drl("open", "blue", "--port=0", "--json").stdout)
    assert (answer["secret"], answer["key"]) == ("blue-a01-x", "auth_token")
    dashboard = find_dashboard(parse_pods([head()]))
    assert dashboard.describe_token("team") == "it asks for no token"


def test_the_report_is_copied_and_opened_in_the_browser(
    server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(open_dashboard.webbrowser, "open", opened.append)
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "claim"
    run.mkdir()
    (run / "report.html").write_text("<html>")
    (run / "train.log").write_text("not asked for")
    worker = {"metadata": {"name": "w", "ownerReferences": owners()}, "status": {"phase": "Running"}}
    server.objects[PODS] = 200, {"items": [worker]}
    server.jobs["blue"] = full_job({"state": "Running", "attempts": 1})
    server.sockets[f"{PODS}/w/exec"] = run_program(run)
    reported = server.drl("open", "blue", "--report")
    path = tmp_path / "runs" / "blue" / "report.html"
    assert (reported.exit_code, reported.stdout, opened) == (0, f"report: {path}\n", [path.as_uri()]), reported.output
    assert sorted(file.name for file in path.parent.iterdir()) == [MARKER, "report.html"]
    as_json = server.drl("open", "blue", "--report", "--json")
    assert (json.loads(as_json.stdout), len(opened)) == ({"report": str(path)}, 1)
    refused = server.drl("open", "blue", "--report", "--port=0")
    assert (refused.exit_code, refused.stderr) == (2, "--port has no effect with --report\n")
    (run / "report.html").unlink()
    early = server.drl("open", "blue", "--report")
    assert (early.exit_code, early.stderr) == (1, "/runs/blue has no report.html yet\n")


def test_a_port_in_use_and_a_missing_head_are_errors(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_dashboard, "_wait", lambda: None)
    server.objects[PODS] = 200, {"items": [head(TOKEN, ready="False")]}
    absent = server.drl("open", "blue")
    assert (absent.exit_code, absent.stderr) == (1, "blue is Starting and has no ready head pod; run drl why blue\n")
    server.objects[PODS] = 200, {"items": [head(TOKEN, cluster="other")]}
    assert "no ready head pod" in server.drl("open", "blue", "--port=0").stderr, "it is a pod of something else"
    server.objects[PODS] = 200, {"items": [head(TOKEN)]}
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken = server.drl("open", "blue", f"--port={listener.getsockname()[1]}")
    assert (taken.exit_code, "--port 0 for any free one" in taken.stderr) == (2, True)
