"""Credentials from a service account and from kubeconfigs, as the operator's client and kopf use them."""

import asyncio
import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from e2e.exec_plugin import ExecPlugin
from omni_operator.cluster import credentials as module
from omni_operator.cluster.credentials import Credentials, NoCredentials, load_credentials


def write_kubeconfig(path: Path, user: dict[str, Any], **cluster: Any) -> Path:
    content = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "me", "namespace": "team-a"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://10.0.0.1:6443", **cluster}}],
        "users": [{"name": "me", "user": user}],
    }
    path.write_text(json.dumps(content))
    return path


async def load(path: Path) -> Credentials:
    return await load_credentials({"KUBECONFIG": str(path)}, Path("/nonexistent"))


async def header(credentials: Credentials) -> str | None:
    return await credentials.loaded.configuration.get_api_key_with_prefix("BearerToken")


@pytest.fixture
def account(tmp_path: Path) -> Path:
    """The folder that a kubelet mounts into pods."""
    for name, content in (("token", "first"), ("ca.crt", "a certificate"), ("namespace", "operators\n")):
        (tmp_path / name).write_text(content)
    return tmp_path


async def test_in_a_pod_the_server_is_an_ip_address(account: Path) -> None:
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}
    credentials = await load_credentials(environ, account)
    assert credentials.loaded.configuration.host == "https://[fd00::1]:6443"
    assert credentials.loaded.configuration.ssl_ca_cert == str(account / "ca.crt")
    assert credentials.loaded.namespace == "operators"
    assert await header(credentials) == "bearer first"


async def test_a_rejected_token_of_a_service_account_is_read_again(account: Path) -> None:
    credentials = await load_credentials({"KUBERNETES_SERVICE_HOST": "h", "KUBERNETES_SERVICE_PORT": "443"}, account)
    (account / "token").write_text("second")
    first = credentials.loaded
    assert await credentials.current() is first
    assert await credentials.current(rejected=first) is not first
    assert await header(credentials) == "bearer second"


async def test_a_rejected_token_file_of_a_kubeconfig_is_read_again(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("first")
    credentials = await load(write_kubeconfig(tmp_path / "config", {"tokenFile": "token"}))
    assert await header(credentials) == "Bearer first"
    (tmp_path / "token").write_text("second")
    await credentials.current(rejected=credentials.loaded)
    assert await header(credentials) == "Bearer second"


async def test_a_kubeconfigs_proxy_is_used_and_the_environments_is_not(tmp_path: Path) -> None:
    path = write_kubeconfig(tmp_path / "config", {"token": "t"}, **{"proxy-url": "http://127.0.0.1:3128"})
    configuration = (await load(path)).loaded.configuration
    assert configuration.proxy == "http://127.0.0.1:3128"
    assert configuration.client_session_kwargs == {"trust_env": False}


async def test_an_exec_plugin_runs_again_when_its_token_expires(tmp_path: Path) -> None:
    plugin = ExecPlugin(tmp_path)
    plugin.print_token("first", lives=3600)
    credentials = await load(write_kubeconfig(tmp_path / "config", plugin.user))
    assert (plugin.runs, await header(credentials)) == (1, "Bearer first")
    plugin.print_token("second")
    expires = credentials.loaded.expires
    assert expires is not None and expires > datetime.now(UTC)
    assert await header(credentials) == "Bearer first"
    credentials.loaded = replace(credentials.loaded, expires=datetime.now(UTC))
    await asyncio.gather(*(credentials.current() for _ in range(5)))
    assert (plugin.runs, await header(credentials)) == (2, "Bearer second")


async def test_requests_whose_token_is_rejected_run_the_exec_plugin_once(tmp_path: Path) -> None:
    plugin = ExecPlugin(tmp_path)
    plugin.print_token("first")
    credentials = await load(write_kubeconfig(tmp_path / "config", plugin.user))
    rejected = credentials.loaded
    await asyncio.gather(*(credentials.current(rejected) for _ in range(5)))
    assert plugin.runs == 2


async def test_a_token_that_is_expired_from_the_start_is_left_to_the_api_server(tmp_path: Path) -> None:
    plugin = ExecPlugin(tmp_path)
    plugin.print_token("first", lives=-60)
    credentials = await load(write_kubeconfig(tmp_path / "config", plugin.user))
    for _ in range(5):
        await credentials.current()
    assert plugin.runs == 1


async def test_a_failed_exec_plugin_keeps_the_credentials_and_is_run_again(tmp_path: Path) -> None:
    plugin = ExecPlugin(tmp_path)
    plugin.print_token("first")
    credentials = await load(write_kubeconfig(tmp_path / "config", plugin.user))
    first = credentials.loaded
    plugin.fail()
    with pytest.raises(NoCredentials, match="user 'me' has no credentials"):
        await credentials.current(rejected=first)
    assert credentials.loaded is first
    plugin.print_token("second")
    await credentials.current(rejected=first)
    assert await header(credentials) == "Bearer second"


async def test_an_exec_plugin_has_a_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = ExecPlugin(tmp_path)
    plugin.path.write_text("#!/bin/sh\nexec sleep 30\n")
    monkeypatch.setattr(module, "PLUGIN_SECONDS", 0.1)
    with pytest.raises(NoCredentials, match="did not answer within"):
        await load(write_kubeconfig(tmp_path / "config", plugin.user))


@pytest.mark.parametrize(
    "content",
    [
        None,
        "",
        "[]",
        "a: [",
        '{"current-context": "x", "contexts": [], "clusters": [], "users": []}',
        '{"current-context": "x", "contexts": [{"name": "x", "context": "y"}], "clusters": [], "users": []}',
        '{"current-context": "x", "contexts": 3, "clusters": {}, "users": null}',
    ],
)
async def test_an_unusable_kubeconfig_is_named(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "config"
    if content is not None:
        path.write_text(content)
    with pytest.raises(NoCredentials, match=str(path)):
        await load(path)


async def test_a_user_without_credentials_is_named(tmp_path: Path) -> None:
    with pytest.raises(NoCredentials, match="user 'me' has no credentials"):
        await load(write_kubeconfig(tmp_path / "config", {}))


async def test_without_any_credentials_all_places_are_named(tmp_path: Path) -> None:
    with pytest.raises(NoCredentials, match=r"KUBECONFIG is not set, and neither .*/token nor .*/\.kube/config exists"):
        await load_credentials({"HOME": str(tmp_path)}, tmp_path)


async def test_the_kubeconfig_in_the_home_folder_is_the_last_resort(tmp_path: Path) -> None:
    (tmp_path / ".kube").mkdir()
    write_kubeconfig(tmp_path / ".kube" / "config", {"token": "t"})
    for variables in ({}, {"KUBECONFIG": ":"}):
        credentials = await load_credentials({"HOME": str(tmp_path), **variables}, tmp_path / "nothing")
        assert await header(credentials) == "Bearer t"
