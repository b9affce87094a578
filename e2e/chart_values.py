"""Generator of the chart's README and of the descriptions in its schema, from the comments of values.yaml.

PYTHONPATH=operator:. python -m e2e.chart_values [--check]
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from e2e.helm import CHART
from omni_operator.plan.pod_policy import PodPolicy

WIDTH = 120
POLICY = "jobs.podPolicy"
MARK = re.compile(r"^ *# -- (.*)$")
CONTINUED = re.compile(r"^ *# (.*)$")
KEY = re.compile(r"^( *)([A-Za-z]\w*):")
Schema = dict[str, Any]
INTRODUCTION = """\
# omni-operator

<!-- Generated from values.yaml, values.schema.json and PodPolicy by `make crds`; do not edit. -->

Helm chart of Omni Operator, for cluster administrators. [docs/install.md](../../docs/install.md) describes
installation, upgrade, permissions and removal. `files/` has the custom resource definition; `make crds` generates it.

`helm test RELEASE` runs a pod that asks the operator's probes and metrics through its Service.

## Values

`values.schema.json` refuses other names.

| value | default | description |
| --- | --- | --- |
"""
TUNING = """
## tuning

| value | description |
| --- | --- |
"""
POLICIES = """
## jobs.podPolicy

[docs/security-of-jobs.md](../../docs/security-of-jobs.md) explains the policy.

| value | default | description |
| --- | --- | --- |
"""


@dataclass(frozen=True, slots=True)
class Value:
    """A documented value: its path with dots, its default and its description."""

    path: str
    default: Any
    description: str


def read_values(text: str) -> list[Value]:
    """Values with a description, in the order of the file: the lines from `# --` to the key are the description."""
    data = YAML(typ="safe").load(text)
    found: list[Value] = []
    parents: list[tuple[int, str]] = []
    words: list[str] = []
    for line in text.splitlines():
        if marked := MARK.match(line):
            words = [marked[1]]
        elif words and (continued := CONTINUED.match(line)):
            words.append(continued[1])
        elif key := KEY.match(line):
            parents = [parent for parent in parents if parent[0] < len(key[1])] + [(len(key[1]), key[2])]
            names = [name for _, name in parents]
            if words:
                found.append(Value(".".join(names), _at(data, names), " ".join(words)))
            words = []
        else:
            words = []
    return found


def leaves(data: Any, at: str = "") -> Iterator[str]:
    """Paths of all values that are no group: a group is a mapping with content."""
    if isinstance(data, dict) and data:
        for name, inner in data.items():
            yield from leaves(inner, f"{at}.{name}" if at else name)
    else:
        yield at


def readme(values: Sequence[Value], schema: Schema) -> str:
    """Text of the README."""
    rows = "".join(
        f"| `{value.path}` | `{json.dumps(value.default)}` | {_cell(value.description)} |\n" for value in values
    )
    tuning = "".join(
        f"| `tuning.{name}` | {_cell(part['description'])} |\n"
        for name, part in schema["properties"]["tuning"]["properties"].items()
    )
    policy = "".join(
        f"| `{POLICY}.{field.alias}` | `{json.dumps(field.default)}` | {_cell(field.description or '')} |\n"
        for field in PodPolicy.model_fields.values()
    )
    return f"{INTRODUCTION}{rows}{TUNING}{tuning}{POLICIES}{policy}"


def with_descriptions(schema: Schema, values: Sequence[Value]) -> Schema:
    """The schema with the descriptions of values.yaml and of the policy's fields; it keeps all others.

    Raises:
        KeyError: a described value is not in the schema.
    """
    described = [(value.path, value.description) for value in values]
    described += [(f"{POLICY}.{field.alias}", field.description or "") for field in PodPolicy.model_fields.values()]
    for path, text in described:
        part = schema
        *parents, name = path.split(".")
        for parent in parents:
            part = part["properties"][parent]
        inner = part["properties"]
        if name not in inner:
            raise KeyError(f"values.schema.json has no {path}")
        inner[name] = {"description": text, **{key: rest for key, rest in inner[name].items() if key != "description"}}
    return schema


def as_json(node: Any, indent: int = 0, before: int = 0) -> str:
    """JSON with everything on one line that fits there; `before` characters precede it on its first line."""
    flat = json.dumps(node, ensure_ascii=False)
    if not isinstance(node, dict | list) or not node or before + len(flat) < WIDTH:
        return flat
    inner = " " * (indent + 2)
    if isinstance(node, list):
        parts = [f"{inner}{as_json(item, indent + 2, indent + 2)}" for item in node]
        return "[\n" + ",\n".join(parts) + f"\n{' ' * indent}]"
    lines = []
    for name, item in node.items():
        start = f"{inner}{json.dumps(name)}: "
        lines.append(start + as_json(item, indent + 2, len(start)))
    return "{\n" + ",\n".join(lines) + f"\n{' ' * indent}}}"


def _at(data: Any, names: Sequence[str]) -> Any:
    for name in names:
        data = data[name]
    return data


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def generated() -> dict[Path, str]:
    """Texts of the generated files."""
    path = CHART / "values.schema.json"
    values = read_values((CHART / "values.yaml").read_text(encoding="utf-8"))
    schema = with_descriptions(json.loads(path.read_text(encoding="utf-8")), values)
    return {path: as_json(schema) + "\n", CHART / "README.md": readme(values, schema)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or check the files. Returns the exit code."""
    parser = argparse.ArgumentParser(description="Write the chart's README and the descriptions in its schema.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file is stale")
    options = parser.parse_args(arguments)
    texts = generated()
    if options.check:
        stale = [path for path, text in texts.items() if path.read_text(encoding="utf-8") != text]
        for path in stale:
            sys.stderr.write(f"{path} does not match values.yaml: run `make crds` and commit it\n")
        return 1 if stale else 0
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
