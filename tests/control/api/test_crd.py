"""Tests of the generated CRD: structural schema, descriptions, bounds and rules."""

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from control.api.job_documents import SMALLEST
from omni_operator.api import DiffusionRLJob
from omni_operator.api.base import VALIDATIONS
from omni_operator.api.crd import definition
from omni_operator.api.crd.structural import KEPT, NotStructural, structural
from tools import generated_file, job_page

ROOT = Path(__file__).resolve().parents[3]
SCHEMA = definition.schema()
PRESERVED = "x-kubernetes-preserve-unknown-fields"
EXTENSIONS = {VALIDATIONS, PRESERVED, "x-kubernetes-list-type", "x-kubernetes-list-map-keys", "x-kubernetes-map-type"}


def nodes(node: dict[str, Any], at: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield at, node
    for name, inner in node.get("properties", {}).items():
        yield from nodes(inner, f"{at}.{name}")
    if "items" in node:
        yield from nodes(node["items"], f"{at}[]")
    if isinstance(node.get("additionalProperties"), dict):
        yield from nodes(node["additionalProperties"], f"{at}.*")


NODES = dict(nodes(SCHEMA))
OURS = {at: node for at, node in NODES.items() if at not in ("", ".metadata")}


def test_every_node_has_a_type_or_is_open() -> None:
    assert len(NODES) > 250
    assert [at for at, node in NODES.items() if "type" not in node and not node.get(PRESERVED)] == []


def test_nodes_have_only_keywords_that_the_api_server_accepts() -> None:
    assert {at: unknown for at, node in NODES.items() if (unknown := set(node) - KEPT - EXTENSIONS)} == {}
    assert [at for at, node in NODES.items() if "properties" in node and "additionalProperties" in node] == []
    assert [at for at, node in NODES.items() if node.get("default", "") is None] == []
    assert [
        at
        for at, node in NODES.items()
        for key in ("exclusiveMinimum", "exclusiveMaximum")
        if key in node and (not isinstance(node[key], bool) or key.replace("exclusiveM", "m") not in node)
    ] == []


def test_every_field_has_a_description() -> None:
    named = {at: node for at, node in OURS.items() if not at.endswith(("[]", ".*"))}
    assert [at for at, node in named.items() if not node.get("description")] == []


def test_every_node_is_bounded_for_the_cost_limit_of_rules() -> None:
    bounds = {"string": ("maxLength", "enum", "format"), "array": ("maxItems",), "object": ("maxProperties",)}
    assert [
        at
        for at, node in OURS.items()
        if node.get("type") in bounds
        and "properties" not in node
        and not node.get(PRESERVED)
        and not any(bound in node for bound in bounds[node["type"]])
        and at not in (".apiVersion", ".kind")
    ] == []


def test_every_list_has_a_merge_strategy() -> None:
    kinds = {at: node.get("x-kubernetes-list-type") for at, node in NODES.items() if node.get("type") == "array"}
    assert None not in kinds.values()
    by_key = {at: NODES[at]["x-kubernetes-list-map-keys"] for at, kind in kinds.items() if kind == "map"}
    assert by_key[".status.conditions"] == ["type"]
    assert by_key[".spec.reward.scorers"] == ["name"]
    for at, keys in by_key.items():
        assert set(keys) <= set(NODES[f"{at}[]"]["required"]), at


def test_every_rule_has_a_message_and_an_existing_field() -> None:
    for at, node in NODES.items():
        for rule in node.get(VALIDATIONS, []):
            assert rule["message"], at
            assert "\n" not in rule["message"] + rule["rule"], at
            assert at + rule.get("fieldPath", "") in NODES, f"{at}: {rule}"


def test_resource_names_of_device_plug_ins_are_accepted() -> None:
    node = NODES[".spec.trainer.accelerator.resourceName"]
    assert node["pattern"] == "^[a-z0-9.-]+/[A-Za-z0-9._-]+$"
    for name in ("nvidia.com/gpu", "nvidia.com/mig-1g.5gb", "huawei.com/Ascend910", "huawei.com/Ascend910-2c"):
        assert re.match(node["pattern"], name)


def test_defaults_are_those_of_the_models() -> None:
    filled = copy.deepcopy(SMALLEST)
    fill(filled["spec"], SCHEMA["properties"]["spec"])
    assert filled["spec"]["rollout"]["engine"]["tensorParallelSize"] == 1
    assert filled["spec"]["security"]["rayAuth"] == "Token"
    assert DiffusionRLJob.model_validate(filled) == DiffusionRLJob.model_validate(SMALLEST)


def fill(value: Any, node: dict[str, Any]) -> None:
    """What the API server does with defaults."""
    for name, inner in node.get("properties", {}).items():
        if name not in value and "default" in inner:
            value[name] = copy.deepcopy(inner["default"])
        if isinstance(value.get(name), dict):
            fill(value[name], inner)
    for item in value if isinstance(value, list) else []:
        fill(item, node["items"])


def test_columns_read_existing_fields() -> None:
    version = definition.crd()["spec"]["versions"][0]
    paths = [column["jsonPath"] for column in version["additionalPrinterColumns"]]
    scale = version["subresources"]["scale"]
    assert sorted(scale) == ["labelSelectorPath", "specReplicasPath", "statusReplicasPath"]
    for path in (*paths, *scale.values()):
        plain = re.sub(r"\[\?\(@\.type==\"\w+\"\)\]", "[]", path)
        assert plain in NODES or plain == ".metadata.creationTimestamp", path
    assert version["subresources"]["status"] == {}


def test_kubectl_get_shows_at_most_seven_columns_and_begins_with_the_state() -> None:
    columns = definition.crd()["spec"]["versions"][0]["additionalPrinterColumns"]
    shown = ["Name", *(column["name"] for column in columns if not column.get("priority"))]
    assert len(shown) <= 7 and shown[1] == "State"


def test_short_name_category_and_size() -> None:
    spec = definition.crd()["spec"]
    assert (spec["names"]["shortNames"], spec["names"]["categories"]) == (["drl"], ["diffusionrl"])
    assert len(definition.text().encode()) < 220_000
    # `kubectl apply` keeps the JSON in an annotation; annotations may have 262,144 bytes.
    assert len(json.dumps(definition.crd())) < 200_000


def test_the_reference_has_every_field() -> None:
    page = job_page.text()
    missing = [at for at in OURS if at.startswith(".spec.") and f"`{at.strip('[]').rpartition('.')[2]}`" not in page]
    assert [at for at in missing if not at.endswith((".*", "[]")) and "odTemplate" not in at] == []


def test_a_stale_file_is_detected_and_rewritten(tmp_path: Path) -> None:
    files = {tmp_path / definition.FILE: definition.text()}
    assert generated_file.stale(files) == [*files]
    generated_file.write(files)
    assert generated_file.stale(files) == []
    (file,) = files
    file.write_text(file.read_text().replace("maxLength: 253", "maxLength: 254", 1))
    assert generated_file.stale(files) == [file]


@pytest.mark.parametrize(
    "schema",
    [
        {"anyOf": [{"type": "string"}, {"type": "integer"}]},
        {"type": "object", "properties": {"a": {"type": "string", "not": {}}}},
        {"type": "array", "items": {"oneOf": []}},
    ],
)
def test_a_schema_that_a_crd_cannot_express_is_an_error(schema: dict[str, Any]) -> None:
    with pytest.raises(NotStructural):
        structural(schema)


def test_a_nullable_field_becomes_optional() -> None:
    assert structural({"anyOf": [{"type": "string", "maxLength": 3}, {"type": "null"}], "default": None}) == {
        "type": "string",
        "maxLength": 3,
    }
