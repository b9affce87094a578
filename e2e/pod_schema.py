"""Generator of the schema of pod templates that the operator ships, from the CRD of the pinned KubeRay.

PYTHONPATH=. python -m e2e.pod_schema
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from e2e.cluster.paths import SOURCES
from e2e.cluster.tools import KUBERAY, kuberay_files, version
from omni_operator.api.spec.pod_schema import FILE, PARTS

TARGET = Path(__file__).resolve().parents[1] / "operator" / "omni_operator" / "api" / "spec" / FILE
KEPT = {
    "type",
    "format",
    "pattern",
    "required",
    "default",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-int-or-string",
}
DROPPED = {"description", "anyOf", "x-kubernetes-map-type"}  # anyOf only repeats int-or-string


def text() -> str:
    """The file: one line for each distinct part of the schema, parts before what contains them."""
    nodes: dict[str, int] = {}
    _collect(pod_template(), nodes)
    kuberay = version(KUBERAY.package, (SOURCES / KUBERAY.module / "go.mod").read_text(encoding="utf-8"))
    lines = ",\n".join(nodes)
    return f'{{"source": "RayJob of KubeRay {kuberay}", "nodes": [\n{lines}\n]}}\n'


@cache
def pod_template() -> dict[str, Any]:
    """The schema of a pod template in KubeRay's RayJob, the same for the head and the workers."""
    text = (kuberay_files() / "crd" / "bases" / "ray.io_rayjobs.yaml").read_text(encoding="utf-8")
    crd = yaml.load(text, Loader=yaml.CSafeLoader)  # 1.4 MB: ruamel.yaml is several times slower
    (served,) = (served for served in crd["spec"]["versions"] if served["name"] == "v1")
    cluster = served["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["rayClusterSpec"]["properties"]
    template: dict[str, Any] = cluster["headGroupSpec"]["properties"]["template"]
    assert template == cluster["workerGroupSpecs"]["items"]["properties"]["template"]
    return template


def _collect(given: dict[str, Any], nodes: dict[str, int]) -> int:
    """Add a part and what it contains; returns its number."""
    kept = {name: value for name, value in given.items() if name in KEPT}
    if unknown := given.keys() - KEPT - DROPPED - {"properties", *PARTS}:
        raise ValueError(f"unknown keywords: {', '.join(sorted(unknown))}")
    if "properties" in given:
        kept["properties"] = {name: _collect(inner, nodes) for name, inner in sorted(given["properties"].items())}
    for name in PARTS:
        if name in given:
            kept[name] = _collect(given[name], nodes)
    return nodes.setdefault(json.dumps(kept, sort_keys=True, separators=(",", ":")), len(nodes))


if __name__ == "__main__":
    TARGET.write_text(text(), encoding="utf-8")
