"""Values of the chart: each is described, in the schema and in the README, and the generated files are up to date."""

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from ruamel.yaml import YAML

from e2e import chart_values
from e2e.helm import CHART
from omni_operator.api.spec import pod_schema
from omni_operator.settings import _TIMEOUTS, Settings
from omni_operator.status.decisions.timeouts import Timeouts

Schema = dict[str, Any]
OF_UMBRELLAS = {"enabled", "global"}  # values that a chart hands to those that are part of it


@pytest.fixture
def schema() -> Schema:
    return json.loads((CHART / "values.schema.json").read_text())


@pytest.fixture
def values() -> list[chart_values.Value]:
    return chart_values.read_values((CHART / "values.yaml").read_text())


def properties(part: Schema, at: str = "") -> Iterator[tuple[str, Schema]]:
    for name, inner in part.get("properties", {}).items():
        path = f"{at}.{name}".removeprefix(".")
        yield path, inner
        yield from properties(inner, path)


def test_every_value_has_a_description(values: list[chart_values.Value]) -> None:
    data = YAML(typ="safe").load(CHART / "values.yaml")
    described = {value.path for value in values}
    missing = [
        path
        for path in chart_values.leaves(data)
        if not any(path == known or path.startswith(f"{known}.") for known in described)
    ]
    assert len(described) > 40
    assert missing == [], "values without a line `# -- ...` above them"


def test_every_property_of_the_schema_has_a_description_and_objects_are_closed(schema: Schema) -> None:
    described = dict(properties(schema))
    assert len(described) > 70
    assert [path for path, part in described.items() if not part.get("description", "").endswith(".")] == []
    closed = [
        path for path, part in described.items() if "properties" in part and part["additionalProperties"] is not False
    ]
    assert (closed, schema["additionalProperties"]) == ([], False)


def test_schema_and_values_have_the_same_names(schema: Schema, values: list[chart_values.Value]) -> None:
    data = YAML(typ="safe").load(CHART / "values.yaml")
    assert set(data) == set(schema["properties"]) - OF_UMBRELLAS
    in_values = {value.path for value in values}
    # Values that are empty by default have their names in the schema only; Kubernetes' own objects have none there.
    only = {path for path, part in properties(schema) if "properties" not in part} - in_values - OF_UMBRELLAS
    assert {path.rpartition(".")[0] for path in only} == {"jobs.podPolicy", "tuning", "jobs.resourceNames", "resources"}


def test_the_schema_refuses_a_value_of_another_type(schema: Schema) -> None:
    """Each value by itself, also those that the chart writes into a pod as they are."""
    text = (CHART / "values.yaml").read_text()
    validator = jsonschema.Draft7Validator(schema)
    assert validator.is_valid(YAML(typ="safe").load(text))
    accepted = []
    for path in chart_values.leaves(YAML(typ="safe").load(text)):
        changed = YAML(typ="safe").load(text)
        *parents, name = path.split(".")
        part = changed
        for parent in parents:
            part = part[parent]
        part[name] = "text" if isinstance(part[name], list) else [7]
        if validator.is_valid(changed):
            accepted.append(path)
    assert accepted == []


def test_the_schema_knows_all_fields_of_security_contexts(schema: Schema) -> None:
    """The chart's schema has exactly the fields in the operator's schema of pod templates."""
    for name, marker in (("podSecurityContext", "fsGroup"), ("securityContext", "readOnlyRootFilesystem")):
        (node,) = (node for node in pod_schema._nodes() if marker in node.get("properties", {}))
        part = {**schema["properties"][name], "definitions": schema["definitions"]}
        for field in node["properties"]:
            assert jsonschema.Draft7Validator(part).is_valid({field: None}), field
        assert not jsonschema.Draft7Validator(part).is_valid({"runAsUsr": 1})


def test_the_defaults_of_tuning_are_those_of_the_operator(schema: Schema) -> None:
    settings = Settings()
    timeouts = Timeouts()
    for name, part in schema["properties"]["tuning"]["properties"].items():
        setting = re.sub(r"(?<=[a-z])([A-Z])", r"_\1", name).lower()
        if setting.upper() in _TIMEOUTS:
            default = getattr(timeouts, _TIMEOUTS[setting.upper()]).total_seconds()
        else:
            default = getattr(settings, setting)
        assert part["description"].endswith(f" Default: {default:g}."), name
