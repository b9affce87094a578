"""Tests of merging pod templates and adding quantities."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.plan.rendered_objects import ray
from omni_operator.plan.pods import quantity
from omni_operator.plan.pods.merge import KEYS, merge_templates

POD: dict[str, Any] = {
    "containers": [
        {
            "name": "ray",
            "image": "a",
            "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
            "readinessProbe": {"httpGet": {"path": "/x", "port": 1}, "periodSeconds": 1},
            "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
        }
    ],
    "volumes": [{"name": "shm", "emptyDir": {"sizeLimit": "1Gi"}}],
    "restartPolicy": "Never",
}


RAY = ("containers", 0)
B_IS_3 = {"name": "B", "value": "3"}
MOUNT = {"name": "m", "mountPath": "/dev/shm"}
EXEC = {"exec": {"command": ["x"]}}
IN_MEMORY = {"name": "shm", "emptyDir": {"medium": "Memory"}}
CLAIM = {"name": "shm", "persistentVolumeClaim": {"claimName": "c"}}


@pytest.mark.parametrize(
    ("patch", "path", "wanted"),
    [
        ({"restartPolicy": "Always"}, ["restartPolicy"], "Always"),
        ({"restartPolicy": None}, ["restartPolicy"], KeyError),
        ({"new": {"a": 1}}, ["new"], {"a": 1}),
        ({"containers": [{"name": "side", "image": "s"}]}, ["containers", 1], {"name": "side", "image": "s"}),
        (ray(image="b"), [*RAY, "image"], "b"),
        (ray(image="b"), [*RAY, "env", 0, "value"], "1"),
        (ray(env=[B_IS_3]), [*RAY, "env"], [{"name": "A", "value": "1"}, B_IS_3]),
        (ray(env=[{"name": "A", "valueFrom": {"x": 1}}]), [*RAY, "env", 0], {"name": "A", "valueFrom": {"x": 1}}),
        (ray(volumeMounts=[MOUNT]), [*RAY, "volumeMounts"], [MOUNT]),
        (ray(readinessProbe=EXEC), [*RAY, "readinessProbe"], {**EXEC, "periodSeconds": 1}),
        ({"volumes": [IN_MEMORY]}, ["volumes", 0, "emptyDir"], {"sizeLimit": "1Gi", "medium": "Memory"}),
        ({"volumes": [CLAIM]}, ["volumes", 0], CLAIM),
    ],
)
def test_pod_templates_merge_as_in_kubernetes(patch: dict[str, Any], path: list[Any], wanted: Any) -> None:
    node: Any = merge_templates(POD, patch)
    for step in path[:-1]:
        node = node[step]
    if wanted is KeyError:
        assert path[-1] not in node
    else:
        assert node[path[-1]] == wanted


leaves = st.none() | st.booleans() | st.integers(0, 3) | st.text("ab", max_size=2)
items = st.fixed_dictionaries({"name": st.sampled_from("abc")}, optional={"x": leaves})
named = st.lists(items, max_size=3, unique_by=lambda item: item["name"])
templates = st.recursive(
    st.dictionaries(st.sampled_from([*KEYS, "x", "y"]), leaves | named, max_size=3),
    lambda inner: st.dictionaries(st.sampled_from(["spec", "metadata", "x"]), inner, max_size=3),
    max_leaves=6,
)


def without_nulls(value: Any) -> bool:
    if isinstance(value, dict):
        return all(item is not None and without_nulls(item) for item in value.values())
    return all(map(without_nulls, value)) if isinstance(value, list) else True


@given(templates, templates)
def test_merging_is_idempotent_and_does_not_change_its_inputs(base: dict[str, Any], patch: dict[str, Any]) -> None:
    before = copy.deepcopy((base, patch))
    once = merge_templates(base, patch)
    assert (base, patch) == before
    assert merge_templates(once, patch) == once or not without_nulls(patch)
    assert merge_templates(base, {}) == base


@given(st.integers(0, 2**50), st.sampled_from(["", "Ki", "Mi", "Gi", "k", "M"]), st.integers(0, 2**50))
def test_sums_of_memory_are_exact(one: int, unit: str, other: int) -> None:
    total = quantity.add(f"{one}{unit}", str(other))
    assert quantity.value(total) == quantity.value(f"{one}{unit}") + other


@pytest.mark.parametrize(
    ("given", "wanted"), [(("4Gi", "2Gi"), "6Gi"), (("1Gi", "512Mi"), "1536Mi"), (("1G", "1"), "1000000001")]
)
def test_sums_of_memory_use_the_largest_unit(given: tuple[str, str], wanted: str) -> None:
    assert quantity.add(*given) == wanted


def test_a_malformed_quantity_is_an_error() -> None:
    assert (quantity.whole("1500m"), quantity.whole("0.5Ki")) == (2, 512)
    with pytest.raises(ValueError, match="not a quantity"):
        quantity.value("4 Gi")


def test_a_probe_keeps_its_handler_if_the_template_names_none() -> None:
    template = {"containers": [{"name": "a", "livenessProbe": {"exec": {"command": ["true"]}, "periodSeconds": 5}}]}
    merged = merge_templates(template, {"containers": [{"name": "a", "livenessProbe": {"periodSeconds": 9}}]})
    assert merged["containers"][0]["livenessProbe"] == {"exec": {"command": ["true"]}, "periodSeconds": 9}
