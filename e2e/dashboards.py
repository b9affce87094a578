"""The queries of the chart's Grafana dashboards."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.helm import CHART

FOLDER = CHART / "monitoring" / "dashboards"
VARIABLE = re.compile(r"\$(\w+)")
LABEL_VALUES = re.compile(r"label_values\((?P<selector>.+), (?P<label>\w+)\)")  # a function of Grafana, not of PromQL


@dataclass(frozen=True, slots=True)
class Query:
    """A query of a panel, with variables of Grafana."""

    panel: str
    expression: str

    def with_values(self, values: Mapping[str, str]) -> str:
        """The query in PromQL.

        Raises:
            KeyError: a variable has no value.
        """
        return VARIABLE.sub(lambda match: values[match[1]], self.expression)


def load(name: str) -> dict[str, Any]:
    """A dashboard: `omni-operator` or `omni-job`."""
    dashboard: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return dashboard


def paths() -> list[Path]:
    """The files of all dashboards."""
    return sorted(FOLDER.glob("*.json"))


def queries(name: str) -> Iterator[Query]:
    """Every query of every panel of a dashboard."""
    for panel in load(name)["panels"]:
        for target in panel["targets"]:
            yield Query(panel["title"], target["expr"])


def choices(name: str) -> Iterator[Query]:
    """The query of every variable of a dashboard that offers values of a label, in PromQL: one sample for each value.

    Raises:
        ValueError: a variable has another query.
    """
    for variable in load(name)["templating"]["list"]:
        if variable["type"] != "query":
            continue
        query = variable["query"]
        if (match := LABEL_VALUES.fullmatch(query)) is None:
            raise ValueError(f"{variable['name']}: {query}")
        yield Query(variable["name"], f"group by ({match['label']}) ({match['selector']})")
