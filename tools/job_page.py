"""Generator of `docs/reference/job.md`, the reference of a job's fields, from the CRD."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from omni_operator.api.crd.definition import schema

Schema = dict[str, Any]
INTRODUCTION = """\
# DiffusionRLJob

<!-- Generated from operator/omni_operator/api by `make crds`; do not edit. -->

All fields of a job, with types and defaults. `kubectl explain diffusionrljob.spec` prints the same text. The API server
and `drl validate` refuse what breaks a rule between fields, and print the rule.

The same file runs on one machine (`drl run job.yaml`) and on a cluster (`kubectl apply -f job.yaml`). In a local run,
fields marked "Cluster only", and the fields of suspension, deadlines, retries and clean-up, have no effect.
`drl validate` prints every problem with its line, `drl validate --cluster` also what the operator would refuse or warn
of, and `drl render --cluster` prints the objects that the operator applies.

`null` means that a field is absent. Relative paths start at the folder of the file in a local run, and at
`spec.runtime.workingDir` in a pod.

Changes of `suspend`, `ttlSecondsAfterFinished`, `cleanupPolicy` and deadlines take effect at once. Changes of the
number of rollout and reward pods, and of fields that only these pods use, change the pods of the running attempt
([pools.md](../guides/pools.md#replicas-that-come-and-go)). All others are for the next attempt, which follows at once
if the trainer does not run yet. `managedBy` and `model.base` cannot change. After the end of the job, only
`ttlSecondsAfterFinished` and `cleanupPolicy` can change.
"""


def text() -> str:
    """Text of the page."""
    job_schema = schema()
    parts = [INTRODUCTION]
    for name in ("spec", "status"):
        groups = list(_groups(job_schema["properties"][name], name))
        places: dict[str, list[str]] = {}
        same: list[str] = []
        for path, body in groups:
            places.setdefault(body, []).append(path)
        for body, paths in places.items():
            level = "##" if paths == [name] else "###"
            parts.append(f"{level} {paths[0]}\n")
            # Groups inside a group that has the same fields as another need no line of their own.
            others = [path for path in paths[1:] if not any(path.startswith((f"{at}.", f"{at}[")) for at in same)]
            if others:
                parts.append(f"The same fields: {', '.join(f'`{path}`' for path in others)}.\n")
            same += others
            parts.append(body)
    return "\n".join(parts)


def _groups(node: Schema, at: str) -> Iterator[tuple[str, str]]:
    """Path and list of a group of fields, then of each group inside it."""
    lines = []
    inner = []
    required = node.get("required", ())
    for name, field in node["properties"].items():
        default = ", required" if name in required else _default(field)
        lines.append(f"- **`{name}`** ({_kind(field)}{default}): {field['description']}")
        holder = field.get("items", field)
        if holder.get("properties"):
            inner.append((holder, f"{at}.{name}{'[]' if 'items' in field else ''}"))
    yield at, "\n".join(lines) + "\n"
    for holder, path in inner:
        yield from _groups(holder, path)


def _kind(field: Schema) -> str:
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    kind = field.get("type", "any")
    if kind == "array":
        inner = field["items"]
        return "list" if inner.get("properties") else f"list of {_kind(inner)}"
    if kind in ("integer", "number") and "maximum" in field:
        return f"{kind} {field['minimum']:,} to {field['maximum']:,}"
    return "mapping" if kind == "object" else str(kind)


def _default(field: Schema) -> str:
    value = field.get("default")
    return "" if value is None or isinstance(value, dict) else f", default `{json.dumps(value)}`"


def generated() -> dict[Path, str]:
    """The page."""
    return {Path("docs/reference/job.md"): text()}
