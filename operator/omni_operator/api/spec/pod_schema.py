"""Schema of a pod template, as in KubeRay's RayJob: what the API server checks when the operator creates a RayJob.

`pod_template_schema.json` is derived from KubeRay's CRD by `make pod-schema`, without descriptions and with each
distinct part once: 20 KB instead of the 1.4 MB of the CRD. It is read when the first job with a pod template comes.
"""

import json
import re
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Any

from omni_operator.api.base import Violation, whole
from omni_operator.api.suggestions import did_you_mean

FILE = "pod_template_schema.json"
PARTS = ("items", "additionalProperties")  # keywords with a part of the schema
TOLD = 100  # errors of one template: naming each of many thousands would take minutes
_RANGES = {"int32": 2**31, "int64": 2**63}
_WORDS = {
    "object": "a mapping",
    "array": "a list",
    "string": "a string",
    "boolean": "true or false",
    "integer": "a whole number",
}
Node = dict[str, Any]
Path = tuple[str | int, ...]


def find_errors(template: Any, *, complete: bool) -> Iterator[Violation]:
    """What the API server would refuse in a pod template; nulls of mappings count as absent.

    Args:
        complete: whether required fields must be there. A patch gets them when it is merged.
    """
    yield from _check(template, _nodes()[-1], (), complete=complete)


@cache
def _nodes() -> list[Node]:
    return json.loads(files(__package__).joinpath(FILE).read_text(encoding="utf-8"))["nodes"]


def _check(value: Any, node: Node, at: Path, *, complete: bool) -> Iterator[Violation]:
    if node.get("x-kubernetes-int-or-string"):
        yield from _check_quantity(value, node, at)
    elif not _is_a(node["type"], value):
        quotes = node["type"] == "string" and isinstance(value, int | float)  # true and false, too
        hint = f", not {json.dumps(value)}: write it in quotes" if quotes else ""
        yield Violation(at, f"must be {_WORDS[node['type']]}{hint}")
    elif node["type"] == "integer":
        limit = _RANGES[node.get("format", "int64")]
        if not -limit <= value < limit:
            yield Violation(at, f"must be a whole number of {node.get('format', 'int64')[3:]} bits")
    elif node["type"] == "object":
        yield from _check_mapping(value, node, at, complete=complete)
    elif node["type"] == "array":
        yield from _check_list(value, node, at, complete=complete)


def _is_a(kind: str, value: Any) -> bool:
    match kind:
        case "object":
            return isinstance(value, dict)
        case "array":
            return isinstance(value, list)
        case "string":
            return isinstance(value, str)
        case "boolean":
            return isinstance(value, bool)
        case _:  # integer; 3.0 is one to the API server
            return not isinstance(value, bool) and (
                isinstance(value, int) or (isinstance(value, float) and value.is_integer())
            )


def _check_quantity(value: Any, node: Node, at: Path) -> Iterator[Violation]:
    """A number or a string, e.g. a port or an amount of memory."""
    if not (_is_a("integer", value) or isinstance(value, str)):
        yield Violation(at, "must be a whole number or a string")
    elif isinstance(value, str) and "pattern" in node and not re.match(node["pattern"], value):
        yield Violation(at, f"{value!r} is not a quantity, such as 500m or 16Gi")


def _check_mapping(value: dict[str, Any], node: Node, at: Path, *, complete: bool) -> Iterator[Violation]:
    fields = node.get("properties", {})
    others = node.get("additionalProperties")
    for name, inner in value.items():
        part = fields.get(name, others)
        if part is None:
            yield Violation((*at, name), f"unknown field of pods{did_you_mean(name, fields)}")
        elif inner is not None:
            yield from _check(inner, _nodes()[part], (*at, name), complete=complete)
    if complete:
        for name in node.get("required", ()):
            if value.get(name) is None:
                yield Violation((*at, name), "must be given")


def _check_list(value: list[Any], node: Node, at: Path, *, complete: bool) -> Iterator[Violation]:
    part = _nodes()[node["items"]]
    for index, item in enumerate(value):
        yield from _check(item, part, (*at, index), complete=complete)
    keys = node.get("x-kubernetes-list-map-keys", ())
    if keys and all(isinstance(item, dict) for item in value):
        defaults = {key: _nodes()[part["properties"][key]].get("default") for key in keys}
        yield from _repeated([tuple(whole(item.get(key) or defaults[key]) for key in keys) for item in value], at)
    elif node.get("x-kubernetes-list-type") == "set":
        yield from _repeated(value, at)


def _repeated(keys: list[Any], at: Path) -> Iterator[Violation]:
    known: set[str] = set()
    for index, key in enumerate(keys):
        text = json.dumps(key)
        if text in known:
            yield Violation((*at, index), "is in the list already")
        known.add(text)
