"""What the tests of both providers of whole clusters do: make pods, lose a node, find processes that are left."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from e2e.cluster import deadlines
from e2e.cluster.api import Api
from e2e.cluster.fake_nodes import is_ready
from e2e.cluster.images import PAUSE_IMAGE
from e2e.cluster.provider import Cluster, node_path


def pod(
    name: str, devices: Mapping[str, str], image: str = PAUSE_IMAGE.name, node: str | None = None
) -> dict[str, Any]:
    """A pod of an image that nodes have.

    Args:
        node: the node to run it, without the scheduler.
    """
    container = {"name": "main", "image": image, "imagePullPolicy": "Never", "resources": {"limits": dict(devices)}}
    spec: dict[str, Any] = {"containers": [container], "terminationGracePeriodSeconds": 0}
    if node is not None:
        spec["nodeName"] = node
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def await_phase(api: Api, path: str, phase: str) -> dict[str, Any]:
    """The pod at `path`, once it is in this phase."""

    def probe() -> dict[str, Any] | None:
        body = api.get(path)
        return body if body["status"].get("phase") == phase else None

    return deadlines.wait_until(f"{path} to be {phase}", deadlines.POD_RUNNING, probe)


def await_unschedulable(api: Api, path: str) -> str:
    """Why the scheduler finds no node for the pod at `path`."""

    def refused() -> str | None:
        conditions = api.get(path)["status"].get("conditions", [])
        return next((item["message"] for item in conditions if item.get("reason") == "Unschedulable"), None)

    return deadlines.wait_until("the scheduler's word", deadlines.POD_RUNNING, refused)


def lose_and_restore(cluster: Cluster, api: Api, node: str) -> None:
    """Cut a node off until it is not Ready, and restore it until it is."""

    def ready(wanted: bool) -> bool:
        return is_ready(api.get(node_path(node))) is wanted

    cluster.cut(node)
    try:
        deadlines.wait_until("the node to be lost", deadlines.NODE_LOST, lambda: ready(False))
    finally:
        cluster.restore(node)
    deadlines.wait_until("the node to be back", deadlines.NODE_BACK, lambda: ready(True))


def processes_naming(*places: str) -> set[str]:
    """PIDs of processes whose command line has one of these texts."""
    return {
        path.parent.name
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if any(text.encode() in _read_if_there(path) for text in places)
    }


def _read_if_there(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
