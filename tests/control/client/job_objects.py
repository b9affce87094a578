"""A job of the example and its pods, as API servers return them."""

from pathlib import Path
from typing import Any

from control.client.fake_server import CLUSTER, owners
from omni_operator.api import load_job

PODS = "/api/v1/namespaces/team/pods"
MADE = f"{PODS}/blue-fetch-x"  # the pod that `drl fetch` creates
EXAMPLE = Path(__file__).parents[3] / "examples" / "red-grpo-cluster.yaml"
DONE = {"state": "Succeeded", "attempts": 1, "conditions": [{"type": "Succeeded", "status": "True", "reason": "R"}]}


def pod(name: str, node_type: str = "worker", attempt: int = 1, cluster: str = CLUSTER) -> dict[str, Any]:
    labels = {"ray.io/node-type": node_type, "diffusionrl.io/attempt": str(attempt)}
    meta = {"name": name, "labels": labels, "ownerReferences": owners(cluster)}
    return {"metadata": meta, "status": {"phase": "Running"}}


def event(reason: str, kind: str, name: str, message: str) -> dict[str, Any]:
    """A warning about an object."""
    return {
        "metadata": {"uid": reason},
        "type": "Warning",
        "reason": reason,
        "message": message,
        "count": 1,
        "lastTimestamp": "2026-01-01T00:00:00Z",
        "involvedObject": {"kind": kind, "name": name},
    }


def full_job(status: dict[str, Any]) -> dict[str, Any]:
    body = load_job(EXAMPLE).document.plain()
    status = {"children": {"rayClusterUID": CLUSTER}, **status}
    return {**body, "metadata": {**body["metadata"], "name": "blue", "uid": "u"}, "status": status}
