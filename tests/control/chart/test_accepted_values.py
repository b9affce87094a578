"""Values that the chart's schema accepts: the operator starts with them; also as a part of an umbrella chart."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from control.chart.rendered_chart import container, of_kind
from e2e import helm as tool
from e2e.health import PAGE
from omni_operator.plan.pod_policy import OWN_VOLUME_TYPES, VOLUME_TYPES
from omni_operator.settings import PREFIX, SettingsError, from_environ

Values = dict[str, Any]
SCHEMA: Values = json.loads((tool.CHART / "values.schema.json").read_text())
JOBS = SCHEMA["properties"]["jobs"]["properties"]
NAMES = st.sampled_from(
    [
        "hostPath",
        "RuntimeDefault",
        "Localhost",
        "Network",
        "ALL",
        "x" * 65,
        "x" * 4097,
        "a\nb",
        "",
        "SYS_PTRACE",
        7,
        "/dev",
        "/a:b",
        "dev",
        *VOLUME_TYPES,
    ]
)
PATHS = st.fixed_dictionaries({"path": NAMES}, optional={"readOnly": NAMES | st.booleans(), "more": NAMES})
ITEMS = NAMES | st.integers(-1, 70000) | PATHS
GIVEN = (
    st.booleans()
    | ITEMS
    | st.lists(ITEMS, max_size=3).flatmap(
        lambda some: st.sampled_from([some, [*some, *OWN_VOLUME_TYPES], [*some, "RuntimeDefault"]])
    )
)
POLICIES = st.dictionaries(st.sampled_from(sorted(JOBS["podPolicy"]["properties"])), GIVEN, max_size=3)
TUNING = SCHEMA["properties"]["tuning"]["properties"]
NUMBERS = st.sampled_from([0, 1, 3, 60, 70, 70.5, 86400000, 86400001, 1e21, 1e30, 1e-7, 0.001, 0.5, -1]) | st.floats(
    allow_nan=False, allow_infinity=False
)


def accepts(part: Values, value: Any) -> bool:
    """Whether a part of the schema accepts a value."""
    schema = {**part, "definitions": SCHEMA["definitions"]}
    return jsonschema.Draft7Validator(schema).is_valid(value)


def starts(name: str, value: str) -> bool:
    """Whether the operator starts with a variable."""
    try:
        from_environ({PREFIX + name: value}, "system")
    except SettingsError:
        return False
    return True


@given(POLICIES)
@settings(max_examples=1500, derandomize=True, deadline=None)
def test_the_schema_accepts_the_policies_with_which_the_operator_starts(policy: Values) -> None:
    assert accepts(JOBS["podPolicy"], policy) == starts("POD_POLICY", json.dumps(policy))


@given(st.sampled_from(sorted(TUNING)), NUMBERS)
@settings(max_examples=1500, derandomize=True, deadline=None)
def test_the_operator_starts_with_every_number_that_the_schema_accepts(name: str, number: float) -> None:
    text = re.sub(r"(?<=[a-z])([A-Z])", r"_\1", name).upper()
    if accepts(TUNING[name], number):
        # As the template writes it: a whole number without a fraction, others as Go does, which is Python's way here.
        written = str(int(number)) if number == int(number) else repr(float(number))
        assert starts(text, written), written


@pytest.mark.parametrize("name", ["a" * 250 + "/b", "a/" + "b" * 252, "nvidia.com/gpu", "gpu", "a=b/c", "a,b/c"])
def test_the_schema_accepts_the_names_of_resources_with_which_the_operator_starts(name: str) -> None:
    assert accepts(JOBS["resourceNames"], {"NVIDIA": name}) == starts("RESOURCE_NAMES", f"NVIDIA={name}")


@pytest.mark.cluster
@pytest.mark.parametrize("enabled", [True, False])
def test_an_umbrella_chart_contains_the_chart_as_documented(helm: Path, tmp_path: Path, enabled: bool) -> None:
    blocks = [block.partition("```")[0] for block in PAGE.read_text().split("```yaml\n")[1:]]
    files = {block.splitlines()[0].removeprefix("# "): block for block in blocks if block.startswith("# ")}
    values = YAML(typ="safe").load(files["values.yaml"])
    values["omni-operator"]["enabled"] = enabled
    values["global"] = {"imageRegistry": "registry.example.com", "nested": {"a": [1]}}
    (tmp_path / "Chart.yaml").write_text(files["Chart.yaml"])
    (tmp_path / "values.yaml").write_text(json.dumps(values))
    shutil.copytree(tool.CHART, tmp_path / "charts" / "omni-operator")
    bodies = tool.rendered(helm, chart=tmp_path)
    assert len(of_kind(bodies, "Deployment")) == int(enabled)
    if enabled:
        image = {"name": f"{PREFIX}IMAGE", "value": "registry.example.com/omni-training:1.0"}
        assert image in container(bodies)["env"]
