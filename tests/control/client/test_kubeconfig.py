"""Kubeconfigs and clusters that cannot be used: one line that says why, and no traceback."""

import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from control.client.fake_server import FakeServer, drl, serving
from control.client.job_objects import EXAMPLE
from control.cluster.old_certificates import remove_identifiers
from e2e.cluster import pki
from omni_operator.client import Client, UnusableKubeconfig, connection
from omni_operator.cluster.errors import Unavailable


def change(kubeconfig: Path, server: str | None = None, user: dict[str, Any] | None = None, **cluster: str) -> None:
    """Change the server, the user or other values of the cluster in a kubeconfig."""
    config = json.loads(kubeconfig.read_text())
    config["clusters"][0]["cluster"].update(cluster | ({"server": server} if server else {}))
    if user is not None:
        config["users"][0]["user"] = user
    kubeconfig.write_text(json.dumps(config))


def only_line(failed: Result) -> str:
    """The only line that a failed command prints to stderr."""
    assert failed.exception is None or isinstance(failed.exception, SystemExit), failed.exception
    (line,) = failed.stderr.splitlines()
    return line


@contextmanager
def listening(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """A port; each connection is given to `answer`, which may fail."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                try:
                    answer(client)
                except OSError:
                    client.close()

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def test_a_token_may_end_with_a_line_break(server: FakeServer, kubeconfig: Path, tmp_path: Path) -> None:
    """As in a file that `echo` writes: kubectl accepts it."""
    (tmp_path / "token").write_text("abc\n")
    change(kubeconfig, user={"tokenFile": str(tmp_path / "token")})
    assert drl(kubeconfig, "why", "blue").exit_code == 0


@pytest.mark.parametrize("token", ["secret\nsecret", "secret\u20ac", "secret\x00"])
def test_a_token_that_no_header_can_hold_is_refused_and_not_printed(
    token: str, server: FakeServer, kubeconfig: Path
) -> None:
    change(kubeconfig, user={"token": token})
    refused = drl(kubeconfig, "why", "blue")
    assert (refused.exit_code, "its token has a line break or another character" in only_line(refused)) == (2, True)
    assert "secret" not in refused.output
    assert server.queries == []


def test_rejected_credentials_are_named_with_what_to_do(server: FakeServer, kubeconfig: Path) -> None:
    server.refusal = 401, {"message": "Unauthorized", "reason": "Unauthorized"}
    for command in (("why", "blue"), ("submit", str(EXAMPLE)), ("logs", "blue"), ("watch", "blue")):
        done = drl(kubeconfig, *command)
        assert (done.exit_code, "rejects the credentials of the kubeconfig" in only_line(done)) == (1, True), command
        assert "log in again" in done.stderr
    with pytest.raises(Unavailable, match="rejects the credentials"):
        Client.from_kubeconfig(str(kubeconfig)).list()


def test_a_certificate_of_another_authority_is_one_line(kubeconfig: Path, tmp_path: Path) -> None:
    authorities = pki.Authority(tmp_path / "own"), pki.Authority(tmp_path / "other")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authorities[0].issue(pki.api_server(["127.0.0.1"])))

    def answer(client: socket.socket) -> None:
        with context.wrap_socket(client, server_side=True):
            return

    with listening(answer) as port:
        authority = pki.encoded(authorities[1].certificate.read_bytes())
        change(kubeconfig, f"https://127.0.0.1:{port}", **{"certificate-authority-data": authority})
        failed = drl(kubeconfig, "why", "blue")
    assert (failed.exit_code, "CERTIFICATE_VERIFY_FAILED" in only_line(failed)) == (1, True)
    assert "compare server, tls-server-name and certificate-authority" in failed.stderr


def test_key_and_certificate_that_do_not_belong_together_are_named(kubeconfig: Path) -> None:
    words = dict.fromkeys(("client-certificate-data", "client-key-data"), pki.encoded(b"none"))
    with listening(socket.socket.close) as port:
        change(kubeconfig, f"https://127.0.0.1:{port}", user=words)
        failed = drl(kubeconfig, "why", "blue")
    assert "check certificate-authority, client-certificate and client-key" in only_line(failed)
    change(kubeconfig, "http://127.0.0.1:1")
    failed = drl(kubeconfig, "why", "blue")
    assert (failed.exit_code, "a server without https:// gets no certificate" in only_line(failed)) == (2, True)


def test_a_server_without_a_scheme_is_refused(server: FakeServer, kubeconfig: Path) -> None:
    change(kubeconfig, f"127.0.0.1:{server.server_port}")
    refused = drl(kubeconfig, "why", "blue")
    assert (refused.exit_code, "must begin with https:// or http://" in only_line(refused)) == (2, True)
    assert server.queries == []


def test_a_user_whose_exec_plugin_fails_has_no_credentials(kubeconfig: Path) -> None:
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": "false", "interactiveMode": "Never"}
    change(kubeconfig, user={"exec": plugin})
    failed = drl(kubeconfig, "why", "blue")
    assert (failed.exit_code, "user 'u' has no credentials" in only_line(failed)) == (2, True), failed.output
    assert "; exec: process returned 1" in failed.stderr


def test_a_cluster_that_does_not_answer_is_an_error(kubeconfig: Path) -> None:
    change(kubeconfig, "http://127.0.0.1:1")
    line = only_line(drl(kubeconfig, "why", "blue"))
    assert line.startswith("no answer from the cluster: GET ") and "Connection refused" in line
    assert line.endswith("; check the server of the kubeconfig, VPN and proxy")


def test_a_server_that_never_answers_is_asked_once(kubeconfig: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "TIMEOUT_SECONDS", 0.1)
    asked: list[socket.socket] = []
    with listening(asked.append) as port:
        change(kubeconfig, f"http://127.0.0.1:{port}")
        for number, command in enumerate((("submit", str(EXAMPLE)), ("why", "blue")), 1):
            failed = drl(kubeconfig, *command)
            assert (failed.exit_code, "Read timed out" in only_line(failed)) == (1, True), command
            assert len(asked) == number, "drl submit asks for the operator's settings first"
    for accepted in asked:
        accepted.close()


@pytest.fixture
def pod_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A small API server with TLS, as a pod finds it, in which `tmp_path` has the files of the service account."""
    authority = pki.Authority(tmp_path / "pki")
    certificate, key = authority.issue(pki.api_server(["127.0.0.1"]))
    remove_identifiers(authority, certificate)  # refused by Python 3.13's default context
    server = FakeServer()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    (tmp_path / "ca.crt").write_bytes(authority.certificate.read_bytes())
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.server_port))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setattr(connection, "POD_FILES", tmp_path)
    with serving(server):
        yield server.server_port


def test_a_pod_without_a_kubeconfig_uses_its_service_account(
    pod_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for unset in ("", ":"):
        monkeypatch.setenv("KUBECONFIG", unset)
        with pytest.raises(UnusableKubeconfig, match=r"there is no file ~/\.kube/config"):
            Client.from_kubeconfig()
    (tmp_path / "token").write_text("secret\n")
    (tmp_path / "namespace").write_text("team")
    client = Client.from_kubeconfig()
    assert [job.name for job in client.list()] == [job.name for job in Client.from_kubeconfig(namespace="team").list()]
    assert client.get("blue").name == "blue"
    _, url, headers, *_ = client.connection.prepare("GET", "/api", (), {})
    assert (url, headers["authorization"]) == (f"https://127.0.0.1:{pod_port}/api", "bearer secret")
    assert client.namespace == "team"
    assert Client.from_kubeconfig(namespace="other").namespace == "other"
    choices: tuple[dict[str, str], ...] = ({"context": "main"}, {"kubeconfig": str(tmp_path / "absent")})
    for options in choices:
        with pytest.raises(UnusableKubeconfig, match="there is no file"):
            Client.from_kubeconfig(**options)
    (tmp_path / "ca.crt").unlink()
    with pytest.raises(UnusableKubeconfig, match="service account of this pod: Service certification file does not"):
        Client.from_kubeconfig()


def test_a_missing_or_malformed_file_is_one_line(kubeconfig: Path, tmp_path: Path) -> None:
    absent = tmp_path / "absent"
    assert f"there is no file {absent}; set KUBECONFIG" in only_line(drl(absent, "why", "blue"))
    line = only_line(drl(tmp_path, "why", "blue"))
    assert f"cannot use the kubeconfig: {tmp_path} cannot be read: Is a directory; set KUBECONFIG" in line
    context = "{current-context: a, contexts: [{name: a, context: 5}], clusters: [], users: []}"
    for text in ("a: [", "[1, 2]", "", "contexts: 3", context):
        kubeconfig.write_text(text)
        refused = drl(kubeconfig, "why", "blue")
        assert (refused.exit_code, "cannot use the kubeconfig: " in only_line(refused)) == (2, True), text
