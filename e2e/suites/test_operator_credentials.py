"""The operator's credentials on a real API server: exec plug-ins whose tokens expire or are revoked."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import kopf
import pytest

from e2e.cluster import deadlines, pki
from e2e.cluster.api import Api
from e2e.cluster.control_plane import ControlPlane
from e2e.exec_plugin import ExecPlugin
from e2e.jobs import JobOnPlane
from e2e.operator_process import AGENT, operator
from omni_operator.cluster.credentials import load_credentials
from omni_operator.handlers.kopf_login import register_login

pytestmark = pytest.mark.cluster
ACCOUNTS = ("first", "second")


class Accounts:
    """Two service accounts of a namespace that may do everything, and an exec plug-in that prints their tokens."""

    def __init__(self, plane: ControlPlane, api: Api, namespace: str, folder: Path) -> None:
        self.plane = plane
        self.api = api
        self.namespace = namespace
        self.plugin = ExecPlugin(folder)
        self._core = f"/api/v1/namespaces/{namespace}"
        for name in ACCOUNTS:
            api.post(f"{self._core}/serviceaccounts", {"metadata": {"name": name}})
            api.post(f"{self._core}/secrets", {"metadata": {"name": name}})
        api.post(
            "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
            {
                "metadata": {"name": f"credentials-{namespace}"},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
                "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace} for name in ACCOUNTS],
            },
        )
        self.kubeconfig = folder / "kubeconfig"
        authority = plane.authority.certificate.read_bytes()
        self.kubeconfig.write_text(json.dumps(pki.kubeconfig(plane.layout.server, authority, self.plugin.user)))

    def print_token(self, name: str, lives: int | None = None) -> None:
        """Have the plug-in print a token of an account, which is valid as long as the account's Secret exists."""
        bound = {"apiVersion": "v1", "kind": "Secret", "name": name}
        request = self.api.post(f"{self._core}/serviceaccounts/{name}/token", {"spec": {"boundObjectRef": bound}})
        self.plugin.print_token(request["status"]["token"], lives)

    def revoke(self, name: str) -> None:
        """Make the account's tokens invalid; the API server notices within the 10 s that it caches them."""
        self.api.delete(f"{self._core}/secrets/{name}")

    def user(self, name: str) -> str:
        return f"system:serviceaccount:{self.namespace}:{name}"

    def called(self, agent: str, name: str, verb: str, since: int) -> bool:
        """Whether a client made a request as this account."""
        calls = self.plane.audit.calls(since)
        return any(
            (call.user, call.verb) == (self.user(name), verb) and call.user_agent.startswith(agent) for call in calls
        )


@pytest.fixture
def accounts(installed: ControlPlane, namespace: str, tmp_path: Path) -> Iterator[Accounts]:
    with installed.api() as api:
        yield Accounts(installed, api, namespace, tmp_path)


def expire(accounts: Accounts) -> None:
    """The first token expires by itself."""


def revoke(accounts: Accounts) -> None:
    accounts.revoke("first")


@pytest.mark.parametrize(("lives", "end"), [(5, expire), (None, revoke)], ids=["expired", "revoked"])
def test_the_operator_runs_its_exec_plugin_again(
    accounts: Accounts, tmp_path: Path, lives: int | None, end: Callable[[Accounts], None]
) -> None:
    plane = accounts.plane
    mark = accounts.plane.audit.mark()
    accounts.print_token("first", lives)
    settings = {"NAMESPACE": accounts.namespace, "NAMESPACES": accounts.namespace, "CANARY_SECONDS": "0.5"}
    with operator(plane, tmp_path, accounts.kubeconfig, **settings) as running:
        assert lives or accounts.plugin.runs == 1, "client, watches and kopf share the credentials"
        assert accounts.called(AGENT, "first", "watch", mark)
        accounts.print_token("second")
        job = JobOnPlane(accounts.api, accounts.namespace)
        job.start()
        end(accounts)
        deadlines.wait_until(
            "a write with the second token",
            deadlines.POD_RUNNING,
            lambda: accounts.called(AGENT, "second", "patch", mark),
        )
        job.end(1)
        job.await_condition("Succeeded", "True")
        assert running.page("/healthz").status_code == 200
    assert lives or accounts.plugin.runs == 2
    rejected = [call for call in plane.audit.calls(mark) if call.code == 401]
    assert bool(rejected) == (lives is None), "a token is replaced when it expires, before it is rejected"


@asynccontextmanager
async def watching(accounts: Accounts, seen: set[str]) -> AsyncIterator[None]:
    """kopf with the operator's login; it reopens its watch every second."""
    registry = kopf.OperatorRegistry()
    settings = kopf.OperatorSettings()
    stop = asyncio.Event()
    settings.watching.server_timeout = 1
    settings.watching.reconnect_backoff = 0.1
    settings.scanning.disabled = True
    settings.posting.enabled = False
    settings.peering.standalone = True
    register_login(registry, await load_credentials({"KUBECONFIG": str(accounts.kubeconfig)}, Path("/nonexistent")))

    @kopf.on.event("configmaps", registry=registry)
    async def event(name: str | None, **_: Any) -> None:
        seen.add(str(name))

    task = asyncio.create_task(
        kopf.operator(registry=registry, settings=settings, namespaces=[accounts.namespace], stop_flag=stop)
    )
    try:
        yield
    finally:
        stop.set()
        await task


async def until(probe: Callable[[], bool]) -> None:
    async with asyncio.timeout(deadlines.POD_RUNNING):
        while not await asyncio.to_thread(probe):
            await asyncio.sleep(0.1)


@pytest.mark.parametrize(("lives", "end"), [(5, expire), (None, revoke)], ids=["expired", "revoked"])
async def test_kopf_logs_in_again_with_the_exec_plugin(
    accounts: Accounts, lives: int | None, end: Callable[[Accounts], None]
) -> None:
    mark = accounts.plane.audit.mark()
    seen = set[str]()
    path = f"/api/v1/namespaces/{accounts.namespace}/configmaps"
    await asyncio.to_thread(accounts.print_token, "first", lives)
    async with watching(accounts, seen):
        await until(lambda: accounts.called("kopf/", "first", "watch", mark))
        await asyncio.to_thread(accounts.print_token, "second")
        await asyncio.to_thread(end, accounts)
        await until(lambda: accounts.called("kopf/", "second", "watch", mark))
        await asyncio.to_thread(accounts.api.post, path, {"metadata": {"name": "late"}})
        await until(lambda: "late" in seen)
    assert lives or accounts.plugin.runs == 2


def test_an_operator_whose_exec_plugin_fails_says_why(accounts: Accounts, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"(?s)the login has expired.*user 'e2e' has no credentials"):
        with operator(accounts.plane, tmp_path, accounts.kubeconfig):
            pass
