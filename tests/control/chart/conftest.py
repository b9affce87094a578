"""Fixtures of the chart's tests: a real Helm, built once per version."""

import json
from pathlib import Path

import pytest

from control.chart.rendered_chart import Body, Given, Render
from e2e import helm as tool
from e2e.cluster.errors import ToolMissing
from e2e.conftest import leave_out


@pytest.fixture(scope="session")
def helm() -> Path:
    """Helm's program."""
    try:
        return tool.helm()
    except ToolMissing as error:
        leave_out(error)


@pytest.fixture(scope="session")
def chart(helm: Path) -> Render:
    """The chart's objects, for some values as `--set` takes them."""

    def render(*options: str, namespace: str = "omni-system") -> list[Body]:
        return tool.rendered(helm, *options, namespace=namespace)

    return render


@pytest.fixture
def given(tmp_path: Path) -> Given:
    """Writes values into a file; returns the option that gives them to Helm."""

    def write(values: Body) -> str:
        path = tmp_path / "values.json"
        path.write_text(json.dumps(values))
        return f"--values={path}"

    return write
