"""Nodes that only exist in the API server, for kwok. PURE."""

from collections.abc import Mapping
from typing import Any

ANNOTATION = {"kwok.x-k8s.io/node": "fake"}


def fake_node(name: str, devices: Mapping[str, int], labels: Mapping[str, str] | None = None) -> dict[str, Any]:
    """A node with these devices. kwok marks it Ready and pretends to run its pods."""
    capacity = {"cpu": "64", "memory": "512Gi", "pods": "110", **{key: str(count) for key, count in devices.items()}}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": dict(ANNOTATION),
            "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", **(labels or {})},
        },
        "status": {"capacity": capacity, "allocatable": capacity},
    }


def is_ready(node: Mapping[str, Any]) -> bool:
    """Whether the node's own condition says so."""
    conditions = node.get("status", {}).get("conditions", [])
    return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)
