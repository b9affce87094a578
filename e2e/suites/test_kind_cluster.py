"""A cluster of kind in containers: what `Cluster` promises, the chart, and a job on two workers.

Without Docker its nodes are containers of podman, with the node image that is built here.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from e2e.cluster import addons
from e2e.cluster.api import Api
from e2e.cluster.errors import ClusterError, ToolMissing
from e2e.cluster.fake_nodes import is_ready
from e2e.cluster.images import StaticImage, architecture, write_archive
from e2e.cluster.kind import settings
from e2e.cluster.kind.provider import KindCluster
from e2e.cluster.paths import cache
from e2e.cluster.processes import run
from e2e.cluster.provider import NodeSpec, node_path
from e2e.cluster.tools import Tools
from e2e.cluster_checks import await_phase, await_unschedulable, lose_and_restore, pod
from e2e.conftest import leave_out, own_namespace
from e2e.jobs import Job
from e2e.system import NAMESPACE, System, bring_up
from e2e.training_jobs import pods, program

pytestmark = [pytest.mark.bare, pytest.mark.about("e2e/cluster/kind", "charts"), pytest.mark.timeout(1800)]

GPU = "nvidia.com/gpu"
NPU = "huawei.com/Ascend910"
# One GPU each, so that the two pods of a job are on two nodes.
NODES = (NodeSpec("first", {GPU: 1, NPU: 8}, {"pool": "first"}), NodeSpec("second", {GPU: 1}, {"pool": "second"}))
ENDED = 600.0
SECOND_NAME = "localhost/omni-e2e/second-name:1"


@pytest.fixture(scope="module")
def system() -> Iterator[System]:
    """A kind cluster with the operator on it; the large image is shared with its nodes by hard links."""
    cluster = KindCluster(instance=1)
    try:
        yield bring_up(cluster, print, NODES)
    except ToolMissing as error:
        leave_out(error)
    finally:
        cluster.delete()


@pytest.fixture
def kind(system: System) -> KindCluster:
    assert isinstance(system.cluster, KindCluster)
    return system.cluster


@pytest.fixture
def api(kind: KindCluster) -> Iterator[Api]:
    with kind.api("e2e-kind") as client:
        yield client


@pytest.fixture
def space(kind: KindCluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace of the test's own."""
    yield from own_namespace(kind, request)


@pytest.mark.every_run
def test_nodes_have_devices_and_labels_and_the_control_plane_its_settings(kind: KindCluster, api: Api) -> None:
    """The settings are read from what runs: kind ignores patches for another version of kubeadm's API."""
    names = settings.worker_names(kind.name, len(NODES))
    assert kind.nodes() == names
    for name, spec in zip(names, NODES, strict=True):
        node = api.get(node_path(name))
        assert is_ready(node)
        assert {device: int(node["status"]["allocatable"][device]) for device in spec.devices} == dict(spec.devices)
        assert node["metadata"]["labels"].items() >= spec.labels.items()
        assert "failCgroupV1: false\n" in kind.run_in(name, "cat", "/var/lib/kubelet/config.yaml")
    for component, flags in (
        ("kube-apiserver", settings.AUDIT_FLAGS),
        ("kube-controller-manager", dict([settings.GRACE_PERIOD])),
    ):
        (container,) = api.get(f"/api/v1/namespaces/kube-system/pods/{component}-{kind.name}-control-plane")["spec"][
            "containers"
        ]
        assert {f"--{name}={value}" for name, value in flags.items()} <= set(container["command"])
    # Pods answer the machine, and find it under this address.
    (dns,) = api.get("/api/v1/namespaces/kube-system/pods", labelSelector="k8s-app=kube-dns")["items"]
    assert httpx2.get(f"http://{dns['status']['podIP']}:8181/ready", trust_env=False).text == "OK"
    assert f'"prefsrc":"{kind.gateway}"' in run(["ip", "-json", "route"])
    mark = kind.audit.mark()
    api.get("/api/v1/namespaces/default/pods")
    expected = Counter({("list", "pods"): 1})
    assert kind.audit.settled(expected, user_agent="e2e-kind", since=mark) == expected


@pytest.mark.every_run
def test_a_loaded_archive_runs_on_every_node_and_devices_are_counted(
    kind: KindCluster, api: Api, space: str, tmp_path: Path
) -> None:
    binary = Path(Tools(cache()).program("pause")).read_bytes()
    image = StaticImage("localhost/omni-e2e/loaded:1", "pause", "/other-path")
    write_archive(image, binary, tmp_path / "loaded.tar", architecture())
    kind.load(tmp_path / "loaded.tar")
    kind.tag(image.name, SECOND_NAME)
    path = f"/api/v1/namespaces/{space}/pods"
    for name in kind.nodes():
        api.post(path, pod(name, {}, image.name, node=name))
    api.post(path, pod("devices", {NPU: "8"}, SECOND_NAME))
    api.post(path, pod("greedy", {NPU: "1"}))
    for name in kind.nodes():
        await_phase(api, f"{path}/{name}", "Running")
    assert await_phase(api, f"{path}/devices", "Running")["spec"]["nodeName"] == kind.nodes()[0]
    assert f"Insufficient {NPU}" in await_unschedulable(api, f"{path}/greedy")


@pytest.mark.every_run
def test_a_node_without_network_is_not_ready_and_recovers(kind: KindCluster, api: Api) -> None:
    node = kind.nodes()[-1]

    lose_and_restore(kind, api, node)
    with pytest.raises(ClusterError, match=f"no node absent: the nodes are {node[:-1]}"):
        kind.cut("absent")


@pytest.mark.every_run
def test_the_chart_is_upgraded_and_logs_are_read(system: System, kind: KindCluster, api: Api) -> None:
    before = {item["metadata"]["uid"] for item in api.get(f"/api/v1/namespaces/{NAMESPACE}/pods")["items"]}
    assert len(before) == 1
    assert "REVISION: " in system.install("--set=podAnnotations.e2e=upgraded")
    addons.await_available(kind.kubectl, [(NAMESPACE, "omni-omni-operator")])
    running = api.get(f"/api/v1/namespaces/{NAMESPACE}/pods")["items"]
    assert {item["metadata"]["uid"] for item in running} - before
    assert kind.kubectl("logs", f"--namespace={NAMESPACE}", "deployment/omni-omni-operator")
    assert set(kind.logs()) == {f"{kind.name}-control-plane", *kind.nodes()}


@pytest.mark.every_run
def test_a_job_runs_on_two_workers_and_finds_its_volume(system: System, api: Api, space: str) -> None:
    """KubeRay starts Ray on both nodes; the names of its services are resolved, and the claim is a folder here."""
    runs = system.claim(space, "runs")
    code = "import ray; ray.init(address='auto'); open('/runs/two-workers/nodes', 'w').write(str(len(ray.nodes())))"
    job = Job(api, space, "two-workers")
    job.create(program(code, rollout__replicas=2, trainer__replicas=2, checkpoint={"claimName": "runs"}))
    placed: set[str] = set()

    def over(status: dict[str, Any]) -> bool:
        placed.update(item["spec"].get("nodeName", "") for item in pods(api, space, "two-workers", "trainer"))
        assert not status.get("failures"), status["failures"]
        return any(item["type"] == "Succeeded" and item["status"] == "True" for item in status.get("conditions", ()))

    job.await_status("the job to succeed", over, ENDED)
    assert set(system.cluster.nodes()) <= placed
    assert [path.read_text() for path in runs.rglob("nodes")] == ["3"]
