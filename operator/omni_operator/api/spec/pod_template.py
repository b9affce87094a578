"""`podTemplate` fields: a strategic merge patch, checked where the operator reads it.

The full schema of a pod template would make the CRD too large to install, so the CRD has the fields in `SCHEMA` alone,
and `pod_schema.py` checks the others. What the template may have pods do is decided by the cluster's policy
(`plan/pod_rules.py`), not here.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, JsonValue, WithJsonSchema
from pydantic_core import PydanticCustomError

from omni_operator.api.base import RULE, VALIDATIONS, Cel, Violation
from omni_operator.api.labels import find_bad_annotations, find_bad_labels
from omni_operator.api.spec.pod_schema import TOLD, find_errors

OPEN: dict[str, Any] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
# Prefixes of labels and annotations by which the operator and KubeRay know their pods.
RESERVED_KEYS = ("diffusionrl.io/", "ray.io/", "app.kubernetes.io/managed-by")
OURS = f"must not be given: labels and annotations that start with {', '.join(RESERVED_KEYS)} are the operator's"
IDENTITY = "must not be given: the operator and KubeRay give pods their names, namespace and owner"
_NAME = {
    "type": "string",
    "minLength": 1,
    "maxLength": 63,
    "description": "Name; an entry of the operator with this name is merged.",
}


def _by_name(description: str, most: int, properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "array",
        "maxItems": most,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name"],
        "description": description,
        "items": {**OPEN, "required": ["name"], "properties": {"name": _NAME, **properties}},
    }


def _strings(description: str) -> dict[str, Any]:
    values = {"type": "string", "maxLength": 4096}
    rule = Cel(f"self.all(key, ![{', '.join(map(repr, RESERVED_KEYS))}].exists(own, key.startsWith(own)))", OURS)
    return {
        "type": "object",
        "maxProperties": 64,
        "description": description,
        "additionalProperties": values,
        VALIDATIONS: [rule.entry()],
    }


_CONTAINER = {"env": _by_name("Environment variables.", 256, {})}
SCHEMA: dict[str, Any] = {
    **OPEN,
    "properties": {
        "metadata": {
            "type": "object",
            "description": "Labels and annotations of the pods; names, namespace and owner are the operator's.",
            "properties": {"labels": _strings("Labels."), "annotations": _strings("Annotations.")},
        },
        "spec": {
            **OPEN,
            "description": "Pod spec; lists merge by name.",
            "properties": {
                "containers": _by_name("Containers. The operator's container is called ray.", 16, _CONTAINER),
                "initContainers": _by_name("Init containers.", 16, _CONTAINER),
                "volumes": _by_name("Volumes.", 64, {}),
            },
        },
    },
}
Path = tuple[str | int, ...]


def _formed(template: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """Return the template if it matches `SCHEMA`."""
    checks = (_wrong(template, SCHEMA, ()), find_errors(template, complete=False), _labels(template))
    if violations := next(filter(None, (list(islice(check, TOLD)) for check in checks)), None):
        raise PydanticCustomError(RULE, "malformed pod template", {"violations": violations})
    return template


def _labels(template: dict[str, Any]) -> Iterator[Violation]:
    metadata = template.get("metadata", {})
    for name, find in (("labels", find_bad_labels), ("annotations", find_bad_annotations)):
        for violation in find(metadata.get(name, {})):
            yield Violation(("metadata", name, *violation.at), violation.text)


def _wrong(value: Any, schema: dict[str, Any], at: Path) -> Iterator[Violation]:
    """What the CRD refuses besides values of a wrong type, which `find_errors` finds."""
    match schema["type"], value:
        case "string", str():
            if not schema.get("minLength", 0) <= len(value) <= schema["maxLength"]:
                yield Violation(at, f"must have {schema.get('minLength', 0)} to {schema['maxLength']} characters")
        case "array", list():
            yield from _wrong_list(value, schema, at)
        case "object", dict():
            yield from _wrong_mapping(value, schema, at)
        case _:
            pass


def _wrong_mapping(value: dict[str, Any], schema: dict[str, Any], at: Path) -> Iterator[Violation]:
    if len(value) > schema.get("maxProperties", len(value)):
        yield Violation(at, f"at most {schema['maxProperties']} entries")
    for name, inner in value.items():
        if known := _field(schema, name):
            yield from _wrong(inner, known, (*at, name))
        elif schema.keys().isdisjoint({"x-kubernetes-preserve-unknown-fields", "additionalProperties"}):
            yield Violation((*at, name), IDENTITY)
        if VALIDATIONS in schema and name.startswith(RESERVED_KEYS):
            yield Violation((*at, name), OURS)


def _wrong_list(value: list[Any], schema: dict[str, Any], at: Path) -> Iterator[Violation]:
    if len(value) > schema["maxItems"]:
        yield Violation(at, f"at most {schema['maxItems']} entries")
    for index, item in enumerate(value):
        yield from _wrong(item, schema["items"], (*at, index))
    names = [item.get("name") for item in value if isinstance(item, dict)]
    if None in names:
        yield Violation(at, "every entry needs a name")
    if len(set(map(str, names))) < len(names):
        yield Violation(at, "names must differ")


def _field(schema: dict[str, Any], name: str) -> dict[str, Any] | None:
    return schema.get("properties", {}).get(name) or schema.get("additionalProperties")


def _without_known_nulls(value: Any, schema: dict[str, Any] | None = None) -> Any:
    """Like the API server: null in a field with a schema means that the field is absent."""
    schema = SCHEMA if schema is None else schema
    if isinstance(value, list) and "items" in schema:
        return [_without_known_nulls(item, schema["items"]) for item in value]
    if not isinstance(value, dict):
        return value
    kept = {}
    for name, inner in value.items():
        known = _field(schema, name)
        if inner is not None or not known:
            kept[name] = _without_known_nulls(inner, known) if known else inner
    return kept


def drop_nulls(value: Any) -> Any:
    """Remove nulls of mappings at every depth. A template keeps them: they remove what the operator would set."""
    match value:
        case dict():
            return {name: drop_nulls(item) for name, item in value.items() if item is not None}
        case list():
            return [drop_nulls(item) for item in value]
        case _:
            return value


PodTemplate = Annotated[
    dict[str, JsonValue], BeforeValidator(_without_known_nulls), AfterValidator(_formed), WithJsonSchema(SCHEMA)
]
