"""A whole cluster of this machine: real kubelets, real pods, real KubeRay, fake accelerators."""

import secrets
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster import deadlines
from e2e.cluster.addons import KUBERAY_NAMESPACE
from e2e.cluster.api import Api
from e2e.cluster.bare.provider import BareCluster
from e2e.cluster.control_plane import ControlPlane
from e2e.cluster.errors import ClusterError
from e2e.cluster.fake_nodes import is_ready
from e2e.cluster.images import PAUSE_IMAGE, StaticImage, architecture, write_archive
from e2e.cluster.processes import runs
from e2e.cluster.provider import NODES
from e2e.cluster_checks import await_phase, await_unschedulable, lose_and_restore, pod

pytestmark = [pytest.mark.bare, pytest.mark.about("e2e/cluster/bare")]


@pytest.fixture
def plane(bare: BareCluster) -> ControlPlane:
    return bare.plane()


@pytest.fixture
def api(plane: ControlPlane) -> Iterator[Api]:
    with plane.api("e2e-suite") as client:
        yield client


def test_every_node_is_ready_with_its_devices(api: Api) -> None:
    nodes = {item["metadata"]["name"]: item for item in api.get("/api/v1/nodes")["items"]}
    assert set(nodes) == {node.name for node in NODES}
    for node in NODES:
        assert is_ready(nodes[node.name])
        offered = nodes[node.name]["status"]["allocatable"]
        assert {name: int(offered[name]) for name in node.devices} == dict(node.devices)
        assert nodes[node.name]["metadata"]["labels"].items() >= node.labels.items()


@pytest.mark.parametrize(("device", "node"), [(device, node.name) for node in NODES for device in node.devices])
def test_a_pod_runs_where_its_device_is(api: Api, bare_namespace: str, device: str, node: str) -> None:
    path = f"/api/v1/namespaces/{bare_namespace}/pods"
    api.post(path, pod("one", {device: "2"}))
    running = await_phase(api, f"{path}/one", "Running")
    assert running["spec"]["nodeName"] == node
    assert running["status"]["containerStatuses"][0]["imageID"].startswith("sha256:")


def test_a_pod_that_requests_too_many_devices_stays_pending_with_the_reason(api: Api, bare_namespace: str) -> None:
    path = f"/api/v1/namespaces/{bare_namespace}/pods"
    api.post(path, pod("greedy", {"nvidia.com/gpu": "9"}))
    assert "3 Insufficient nvidia.com/gpu" in await_unschedulable(api, f"{path}/greedy")


def test_an_archive_that_is_loaded_runs(bare: BareCluster, api: Api, bare_namespace: str, tmp_path: Path) -> None:
    program = Path(bare.plane().layout.tools.program("pause")).read_bytes()
    image = StaticImage("localhost/omni-e2e/loaded:1", "pause", "/other-path")
    write_archive(image, program, tmp_path / "loaded.tar", architecture())
    bare.load(tmp_path / "loaded.tar")
    path = f"/api/v1/namespaces/{bare_namespace}/pods"
    for node in NODES:
        for device in node.devices:
            api.post(path, pod(node.name, {device: "1"}, image.name))
    for node in NODES:
        assert await_phase(api, f"{path}/{node.name}", "Running")["spec"]["nodeName"] == node.name


def query(name: str, server: str) -> list[str]:
    """Addresses of a name, by a DNS query (RFC 1035)."""
    number = secrets.randbelow(1 << 16)
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split(".")) + b"\0"
    question = labels + struct.pack("!HH", 1, 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.settimeout(5)
        asking.sendto(struct.pack("!6H", number, 0x0100, 1, 0, 0, 0) + question, (server, 53))
        answer = asking.recv(512)
    found_number, flags, _, count, _, _ = struct.unpack("!6H", answer[:12])
    assert (found_number, flags & 0xF) == (number, 0), name
    # Each of these answers ends with the four bytes of the address.
    return [socket.inet_ntoa(answer[-4:])] if count == 1 else []


def test_services_are_resolved_by_name_and_reached_from_the_machine(bare: BareCluster, api: Api) -> None:
    """A query to the DNS service passes kube-proxy on its way to a pod and back."""
    service = api.get(f"/api/v1/namespaces/{KUBERAY_NAMESPACE}/services/kuberay-operator")
    asked = f"kuberay-operator.{KUBERAY_NAMESPACE}.svc.cluster.local"
    # UDP may lose the first packet.
    for _ in range(3):
        try:
            addresses = query(asked, bare.network.dns)
            break
        except TimeoutError:
            continue
    else:
        pytest.fail("the name server does not answer")
    assert addresses == [service["spec"]["clusterIP"]]


def test_logs_of_a_pod_are_read_through_the_api_server(plane: ControlPlane) -> None:
    text = plane.kubectl("logs", "--namespace=kube-system", "deployment/coredns")
    assert "CoreDNS-1." in text


def test_kuberay_makes_the_pods_of_a_cluster(plane: ControlPlane, api: Api, bare_namespace: str) -> None:
    mark = plane.audit.mark()
    container = {"name": "ray-head", "image": PAUSE_IMAGE.name, "imagePullPolicy": "Never"}
    spec = {
        "rayVersion": "2.60.0",
        "headGroupSpec": {"rayStartParams": {}, "template": {"spec": {"containers": [container]}}},
    }
    cluster = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": "tiny"}, "spec": spec}
    path = f"/apis/ray.io/v1/namespaces/{bare_namespace}/rayclusters"
    api.post(path, cluster)
    pods = f"/api/v1/namespaces/{bare_namespace}/pods"

    def head() -> bool:
        return len(api.get(pods, labelSelector="ray.io/node-type=head")["items"]) == 1

    deadlines.wait_until("KubeRay to make the head", deadlines.POD_RUNNING, head)
    api.delete(f"{path}/tiny", propagationPolicy="Background")
    user = f"system:serviceaccount:{KUBERAY_NAMESPACE}:kuberay-operator"
    # Not exactly one: KubeRay replaces a head that is collected before it has seen that the cluster is deleted.
    assert plane.audit.counts(user=user, since=mark)["create", "pods"]


def test_a_node_without_network_is_not_ready_and_recovers(bare: BareCluster, api: Api) -> None:
    lose_and_restore(bare, api, "ascend")


def test_a_running_cluster_is_not_started_again(bare: BareCluster) -> None:
    before = bare.plane().daemons.recorded()
    bare.create()
    after = bare.plane().daemons.recorded()
    assert sorted(before, key=str) == sorted(after, key=str)
    assert all(runs(identity) for identity in after)
    assert {"etcd", "kube-apiserver", "nvidia/kubelet", "nvidia/containerd", "nvidia/kube-proxy"} <= set(bare.logs())


def test_an_unknown_node_is_refused(bare: BareCluster) -> None:
    with pytest.raises(ClusterError, match="no node absent: the nodes are nvidia, ascend, other"):
        bare.cut("absent")
