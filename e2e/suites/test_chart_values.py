"""Values that the chart's schema lists: the operator starts with each of them."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from e2e import helm
from e2e.cluster.control_plane import ControlPlane
from e2e.operator_process import operator
from omni_operator.plan.pod_policy import OWN_VOLUME_TYPES, VOLUME_TYPES, PodPolicy

pytestmark = pytest.mark.cluster

Values = dict[str, Any]
# Names that the schema does not list, and what a list must contain besides the value.
NAMES = {"volumeTypes": VOLUME_TYPES, "capabilities": ("ALL",)}
COMPLETE = {"seccompProfiles": ("RuntimeDefault",), "volumeTypes": OWN_VOLUME_TYPES}
OF_THE_TEST = {"NAMESPACE", "LEASE", "HTTP_PORT", "REPORTS_PORT"}


def listed(part: Mapping[str, Any], at: str = "") -> Iterator[tuple[str, Sequence[Any]]]:
    """Paths of the schema with their values: those that it lists, or false and true."""
    for name, inner in part.get("properties", {}).items():
        path = f"{at}.{name}".removeprefix(".")
        values = NAMES.get(name) or inner.get("enum") or inner.get("items", {}).get("enum") or ()
        if inner.get("type") == "boolean":
            values = (False, True)
        if values:
            is_list = inner.get("type") == "array"
            yield path, [[*COMPLETE.get(name, ()), value] if is_list else value for value in values]
        yield from listed(inner, path)


def nested(flat: Mapping[str, Any]) -> Values:
    """Values by path as Helm takes them."""
    values: Values = {}
    for path, value in flat.items():
        *parents, name = path.split(".")
        part = values
        for parent in parents:
            part = part.setdefault(parent, {})
        part[name] = value
    return values


def settings(bodies: list[Values]) -> dict[str, str]:
    """Variables of the operator's container, without their prefix."""
    (deployment,) = (body for body in bodies if body["kind"] == "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    env = {item["name"].removeprefix("OMNI_OPERATOR_"): item["value"] for item in container["env"] if "value" in item}
    return {name: value for name, value in env.items() if name not in OF_THE_TEST}


def test_the_operator_starts_with_every_value_that_the_schema_lists(
    program: Path, installed: ControlPlane, tmp_path: Path
) -> None:
    """The first values of all paths together, then the second ones, and so on."""
    choices = dict(listed(json.loads((helm.CHART / "values.schema.json").read_text())))
    policy = {path.rpartition(".")[2] for path in choices if path.startswith("jobs.podPolicy.")}
    names = {field.alias for field in PodPolicy.model_fields.values()}
    assert policy == names - {"serviceAccounts", "secrets", "hostPorts", "hostPaths"}
    assert {*choices} > {"log.format", "replicas", "image.pullPolicy", "enabled", "reports.enabled"}
    for number in range(max(map(len, choices.values()))):
        values = nested({path: allowed[number % len(allowed)] for path, allowed in choices.items()})
        file = tmp_path / "values.json"
        file.write_text(json.dumps(values))
        variables = settings(helm.rendered(program, f"--values={file}"))
        assert json.loads(variables["POD_POLICY"]) == values["jobs"]["podPolicy"]
        with operator(installed, tmp_path, **variables) as running:
            assert running.page("/healthz").status_code == 200, values
