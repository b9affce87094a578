"""A control plane: it answers, fakes nodes and pods, counts every call, and leaves nothing."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import httpx2
import pytest

from e2e.cluster import deadlines
from e2e.cluster.api import ApiError
from e2e.cluster.control_plane import ControlPlane, control_plane, sweep
from e2e.cluster.processes import Identity, runs
from e2e.cluster_checks import pod
from e2e.conftest import make_empty

pytestmark = pytest.mark.cluster


def test_kubectl_and_the_api_agree_on_the_version(plane: ControlPlane) -> None:
    version = json.loads(plane.kubectl("version", "--output=json"))
    assert version["clientVersion"]["gitVersion"] == version["serverVersion"]["gitVersion"]
    assert version["serverVersion"]["minor"] == version["serverVersion"]["gitVersion"].split(".")[1]


def test_fake_nodes_offer_their_devices(plane: ControlPlane) -> None:
    with plane.api() as api:
        nodes = {item["metadata"]["name"]: item["status"]["allocatable"] for item in api.get("/api/v1/nodes")["items"]}
    assert nodes["gpu-0"]["nvidia.com/gpu"] == "8"
    assert nodes["npu-0"]["huawei.com/Ascend910"] == "8"
    assert nodes["other-0"]["example.com/tpu"] == "4"


@pytest.mark.parametrize(
    ("device", "node"), [("nvidia.com/gpu", "gpu-0"), ("huawei.com/Ascend910", "npu-0"), ("example.com/tpu", "other-0")]
)
def test_a_pod_runs_where_its_device_is(plane: ControlPlane, namespace: str, device: str, node: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods"
    with plane.api() as api:
        api.post(path, pod("one", {device: "1"}))
        deadlines.wait_until(
            "the pod to run", deadlines.POD_RUNNING, lambda: api.get(f"{path}/one")["status"]["phase"] == "Running"
        )
        assert api.get(f"{path}/one")["spec"]["nodeName"] == node


def test_a_namespace_that_a_killed_test_left_is_made_again_and_empty(plane: ControlPlane, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    with plane.api() as api:
        api.post(path, {"metadata": {"name": "left"}})
        make_empty(api, namespace)
        assert "left" not in {item["metadata"]["name"] for item in api.get(path)["items"]}


def test_the_audit_log_counts_every_call_of_a_client_once(plane: ControlPlane, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    mark = plane.audit.mark()
    with plane.api("counted/1.0") as api, plane.api("other/1.0") as other_client:
        api.post(path, {"metadata": {"name": "a"}, "data": {"key": "value"}})
        for _ in range(3):
            api.get(f"{path}/a")
        other_client.get(path)
        api.get(path, labelSelector="no=thing")
        api.patch(f"{path}/a", {"data": {"key": "other"}})
        applied = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "b"}}
        api.patch(f"{path}/b", applied, "apply", fieldManager="e2e")
        with pytest.raises(ApiError, match="404 NotFound"):
            api.get(f"{path}/missing")
        api.delete(f"{path}/a")
    expected = Counter(
        {
            ("create", "configmaps"): 1,
            ("get", "configmaps"): 4,
            ("list", "configmaps"): 1,
            ("patch", "configmaps"): 2,
            ("delete", "configmaps"): 1,
        }
    )
    assert plane.audit.settled(expected, user_agent="counted/", since=mark) == expected
    assert plane.audit.counts(user_agent="other/", since=mark) == {("list", "configmaps"): 1}
    codes = Counter(call.code for call in plane.audit.calls(mark) if call.user_agent == "counted/1.0")
    assert codes == {200: 6, 201: 2, 404: 1}


@pytest.mark.parametrize("kind", ["account", "user"])
def test_another_identity_may_do_what_roles_allow(plane: ControlPlane, namespace: str, kind: str) -> None:
    mark = plane.audit.mark()
    if kind == "account":
        user = f"system:serviceaccount:{namespace}:default"
        kubeconfig = plane.kubeconfig_of_account(namespace, "default")
    else:
        user = f"jane-{namespace}"
        kubeconfig = plane.kubeconfig_of(user, "developers")
    kubectl = [plane.layout.tools.program("kubectl"), f"--kubeconfig={kubeconfig}", "get", "--raw"]
    path = f"/api/v1/namespaces/{namespace}/secrets"
    refused = subprocess.run([*kubectl, path], capture_output=True, text=True, timeout=deadlines.COMMAND, check=False)
    assert refused.returncode == 1
    assert f'User "{user}" cannot list resource "secrets"' in refused.stderr
    expected = Counter({("list", "secrets"): 1})
    assert plane.audit.settled(expected, user=user, since=mark) == expected


def test_nothing_is_left_when_it_ends(tmp_path: Path) -> None:
    with control_plane({"only": {"nvidia.com/gpu": 1}}, parent=tmp_path) as plane:
        identities = plane.daemons.recorded()
        server = plane.layout.server
        assert {item.name for item in identities} == {
            "etcd",
            "kube-apiserver",
            "kube-controller-manager",
            "kube-scheduler",
            "kwok",
        }
        assert all(runs(item) for item in identities)
    assert [item.name for item in identities if runs(item)] == []
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(httpx2.ConnectError):
        httpx2.get(server, verify=False, trust_env=False)


def test_its_processes_end_when_its_owner_is_killed(tmp_path: Path) -> None:
    """The processes end with their owner; the folder goes when the next one starts."""
    code = (
        "import os, pathlib, signal, sys\n"
        "from e2e.cluster.control_plane import control_plane\n"
        "with control_plane(parent=pathlib.Path(sys.argv[1])) as plane:\n"
        "    for path in (plane.layout.folder / 'processes').glob('*.json'): print('identity', path.read_text())\n"
        "    sys.stdout.flush()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=deadlines.API_READY,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("identity ")]
    identities = [Identity(**json.loads(line.removeprefix("identity "))) for line in lines]
    assert len(identities) == 5, done.stderr
    deadlines.wait_until("their end", deadlines.PROCESS_END, lambda: not any(runs(item) for item in identities))
    left = list(tmp_path.iterdir())
    assert len(left) == 1
    assert sweep(tmp_path) == left
    assert list(tmp_path.iterdir()) == []
