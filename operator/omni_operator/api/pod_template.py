"""`podTemplate` fields: a strategic merge patch, checked where the operator reads it.

The full schema of a pod template would make the CRD too large to install. The fields in `SCHEMA` are checked here; the
API server checks the rest when the operator applies the rendered object.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, JsonValue, WithJsonSchema

OPEN: dict[str, Any] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_NEEDS = "Requires spec.security.allowHostPaths."
_NAME = {
    "type": "string",
    "minLength": 1,
    "maxLength": 63,
    "description": "Name; an entry of the operator with this name is merged.",
}
_HOST = {"type": "boolean", "description": _NEEDS}


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
    return {"type": "object", "maxProperties": 64, "description": description, "additionalProperties": values}


_CONTAINER = {
    "env": _by_name("Environment variables.", 256, {}),
    "securityContext": {
        **OPEN,
        "description": "Security context.",
        "properties": {"privileged": {"type": "boolean", "description": _NEEDS}},
    },
}
SCHEMA: dict[str, Any] = {
    **OPEN,
    "properties": {
        "metadata": {
            **OPEN,
            "description": "Metadata of the pods.",
            "properties": {"labels": _strings("Labels."), "annotations": _strings("Annotations.")},
        },
        "spec": {
            **OPEN,
            "description": "Pod spec; lists merge by name.",
            "properties": {
                "hostNetwork": _HOST,
                "hostIPC": _HOST,
                "hostPID": _HOST,
                "containers": _by_name("Containers. The operator's container is called ray.", 16, _CONTAINER),
                "initContainers": _by_name("Init containers.", 16, _CONTAINER),
                "volumes": _by_name("Volumes.", 64, {"hostPath": {**OPEN, "description": _NEEDS}}),
            },
        },
    },
}
HOST_NAMESPACES = ("hostNetwork", "hostIPC", "hostPID")
_TYPES: dict[str, Any] = {"object": dict, "array": list, "string": str, "boolean": bool}
_WORDS = {"object": "a mapping", "array": "a list", "string": "a string", "boolean": "true or false"}


def _formed(template: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """Return the template if it matches `SCHEMA`."""
    for at, text in _wrong(template, SCHEMA, ""):
        raise ValueError(f"{at.removeprefix('.')}: {text}")
    return template


def _wrong(value: Any, schema: dict[str, Any], at: str) -> Iterator[tuple[str, str]]:
    kind = schema["type"]
    if not isinstance(value, _TYPES[kind]):
        yield at, f"must be {_WORDS[kind]}"
    elif kind == "string":
        if not schema.get("minLength", 0) <= len(value) <= schema["maxLength"]:
            yield at, f"must have {schema.get('minLength', 0)} to {schema['maxLength']} characters"
    elif kind == "array":
        yield from _wrong_list(value, schema, at)
    elif kind == "object":
        if len(value) > schema.get("maxProperties", len(value)):
            yield at, f"at most {schema['maxProperties']} entries"
        for name, inner in value.items():
            known = schema.get("properties", {}).get(name) or schema.get("additionalProperties")
            if known:
                yield from _wrong(inner, known, f"{at}.{name}")


def _wrong_list(value: list[Any], schema: dict[str, Any], at: str) -> Iterator[tuple[str, str]]:
    if len(value) > schema["maxItems"]:
        yield at, f"at most {schema['maxItems']} entries"
    for place, item in enumerate(value):
        yield from _wrong(item, schema["items"], f"{at}[{place}]")
    names = [item.get("name") for item in value if isinstance(item, dict)]
    if None in names:
        yield at, "every entry needs a name"
    if len(set(map(str, names))) < len(names):
        yield at, "names must differ"


def _without_known_nulls(value: Any, schema: dict[str, Any] | None = None) -> Any:
    """Like the API server: null in a field with a schema means that the field is absent."""
    schema = SCHEMA if schema is None else schema
    if isinstance(value, list) and "items" in schema:
        return [_without_known_nulls(item, schema["items"]) for item in value]
    if not isinstance(value, dict):
        return value
    made = {}
    for name, inner in value.items():
        known = schema.get("properties", {}).get(name) or schema.get("additionalProperties")
        if inner is not None or not known:
            made[name] = _without_known_nulls(inner, known) if known else inner
    return made


PodTemplate = Annotated[
    dict[str, JsonValue], BeforeValidator(_without_known_nulls), AfterValidator(_formed), WithJsonSchema(SCHEMA)
]


def host_access(template: dict[str, Any]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Fields of a checked template that access the node: path and description of each."""
    spec = template.get("spec", {})
    for name in HOST_NAMESPACES:
        if spec.get(name):
            yield ("spec", name), name
    for kind in ("containers", "initContainers"):
        for place, container in enumerate(spec.get(kind, ())):
            if container.get("securityContext", {}).get("privileged"):
                yield ("spec", kind, place, "securityContext", "privileged"), "a privileged container"
    for place, volume in enumerate(spec.get("volumes", ())):
        if "hostPath" in volume:
            yield ("spec", "volumes", place, "hostPath"), "a hostPath volume"


def host_access_cel(template: str) -> str:
    """CEL rule that `host_access` finds nothing; `template` is an expression that is always set."""
    spec = f"{template}.spec"
    apart = [f"(!has({spec}.{name}) || !{spec}.{name})" for name in HOST_NAMESPACES]
    apart += [
        f"(!has({spec}.{kind}) || {spec}.{kind}.all(c, !has(c.securityContext) || "
        f"!has(c.securityContext.privileged) || !c.securityContext.privileged))"
        for kind in ("containers", "initContainers")
    ]
    apart.append(f"(!has({spec}.volumes) || {spec}.volumes.all(v, !has(v.hostPath)))")
    return f"!has({spec}) || ({' && '.join(apart)})"
