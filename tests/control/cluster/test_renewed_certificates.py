"""Certificates that are renewed while the operator runs: their files are replaced in place, as kubelets do."""

import ssl
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from control.cluster import local_server
from control.cluster.old_certificates import remove_identifiers
from e2e.cluster.pki import ADMIN, Authority, api_server
from omni_operator.cluster.client import ApiServer
from omni_operator.cluster.credentials import Credentials, Loaded, load_credentials
from omni_operator.cluster.errors import Unavailable
from omni_operator.cluster.kinds import JOBS, PODS
from omni_operator.cluster.watch.watch_client import WatchClient
from omni_operator.handlers.kopf_login import connection_info

Handle = Callable[[web.Request], Awaitable[web.Response]]


async def answer(request: web.Request) -> web.Response:
    return web.json_response({"kind": "List", "metadata": {"resourceVersion": "1"}, "items": []})


def serving(authority: Authority, handle: Handle = answer, port: int = 0) -> AbstractAsyncContextManager[int]:
    """A server with a certificate of the authority; it asks clients for theirs. Gives its port."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.certificate))
    context.load_cert_chain(*authority.issue(api_server(["127.0.0.1"])))
    context.verify_mode = ssl.CERT_OPTIONAL
    return local_server.serving(handle, port, context)


class CountedCredentials(Credentials):
    """Credentials that count how often they were reloaded."""

    loads = 0

    async def current(self, rejected: Loaded | None = None) -> Loaded:
        before = self.loaded
        after = await super().current(rejected)
        CountedCredentials.loads += after is not before
        return after


def mount_account(folder: Path, authority: Authority) -> None:
    """What a kubelet mounts into a pod."""
    folder.mkdir()
    (folder / "token").write_text("token")
    (folder / "namespace").write_text("operators")
    (folder / "ca.crt").write_bytes(authority.certificate.read_bytes())


async def load_account(folder: Path, port: int) -> Credentials:
    """The service account of a pod."""
    environ = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(port)}
    credentials = await load_credentials(environ, folder)
    CountedCredentials.loads = 0
    return CountedCredentials(credentials.loaded, environ, folder)


async def request(credentials: Credentials) -> tuple[ApiServer, Callable[[], Awaitable[None]]]:
    client = ApiServer(credentials, lambda *_: None, version="1")

    async def send() -> None:
        await client.list_objects(JOBS, "team-a", "")

    return client, send


async def watch(credentials: Credentials) -> tuple[WatchClient, Callable[[], Awaitable[None]]]:
    client = WatchClient(credentials, lambda *_: None, version="1")

    async def send() -> None:
        response = await client._open("list", PODS, None, {}, "list pods")
        response.close()

    return client, send


@pytest.mark.parametrize("make", [request, watch])
async def test_another_certificate_authority_of_the_cluster_is_trusted_when_its_file_is_there(
    tmp_path: Path, make: Callable[[Credentials], Awaitable[tuple[ApiServer, Callable[[], Awaitable[None]]]]]
) -> None:
    before = Authority(tmp_path / "before")
    after = Authority(tmp_path / "after")
    async with serving(before) as port:
        mount_account(tmp_path / "account", before)
        client, send = await make(await load_account(tmp_path / "account", port))
        async with client:
            await send()
    async with client, serving(after, port=port):
        for _ in range(3):
            with pytest.raises(Unavailable, match="certificate verify failed"):
                await send()
        assert CountedCredentials.loads == 0, "nothing is loaded again while no file changes"
        (tmp_path / "account" / "ca.crt").write_bytes(after.certificate.read_bytes())
        await send()
        await send()
        assert CountedCredentials.loads == 1


async def test_a_client_certificate_that_was_renewed_in_place_is_used_after_the_old_one_is_rejected(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path / "authority")
    accepted = [b""]

    async def handle(request: web.Request) -> web.Response:
        peer = request.transport.get_extra_info("ssl_object") if request.transport else None
        if peer is None or peer.getpeercert(binary_form=True) != accepted[0]:
            return web.json_response({"kind": "Status", "message": "Unauthorized"}, status=401)
        return await answer(request)

    async with serving(authority, handle) as port:
        certificate, key = authority.issue(ADMIN)
        config = tmp_path / "config"
        config.write_text(
            f"""
current-context: here
contexts: [{{name: here, context: {{cluster: c, user: me}}}}]
clusters: [{{name: c, cluster: {{server: "https://127.0.0.1:{port}", certificate-authority: {authority.certificate}}}}}]
users: [{{name: me, user: {{client-certificate: {certificate}, client-key: {key}}}}}]
"""
        )
        accepted[0] = ssl.PEM_cert_to_DER_cert(certificate.read_text())
        credentials = await load_credentials({"KUBECONFIG": str(config)})
        async with ApiServer(credentials, lambda *_: None, version="1") as client:
            await client.list_objects(JOBS, "team-a", "")
            for path in (certificate, key):
                path.unlink()
            authority.issue(ADMIN)
            accepted[0] = ssl.PEM_cert_to_DER_cert(certificate.read_text())
            await client.list_objects(JOBS, "team-a", "")


async def test_an_authority_without_key_identifiers_is_trusted_as_kubectl_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python 3.13 refuses it by default; other versions are made to."""
    create = ssl.create_default_context

    def create_as_newest_python(*args: Any, **kwargs: Any) -> ssl.SSLContext:
        context = create(*args, **kwargs)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    authority = Authority(tmp_path / "authority")
    remove_identifiers(authority, authority.issue(api_server(["127.0.0.1"]))[0])
    mount_account(tmp_path / "account", authority)
    async with serving(authority) as port:
        monkeypatch.setattr(ssl, "create_default_context", create_as_newest_python)
        credentials = await load_account(tmp_path / "account", port)
        client, send = await request(credentials)
        async with client:
            await send()
        context_of_kopf = (await connection_info(credentials.loaded)).as_ssl_context()
        strict = create_as_newest_python(cafile=str(authority.certificate))
        async with aiohttp.ClientSession() as session:
            async with session.get(f"https://127.0.0.1:{port}/", ssl=context_of_kopf) as response:
                assert response.status == 200
            with pytest.raises(aiohttp.ClientConnectorCertificateError, match="Missing Authority Key Identifier"):
                await session.get(f"https://127.0.0.1:{port}/", ssl=strict)
