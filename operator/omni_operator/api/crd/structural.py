"""PURE: conversion of pydantic's JSON schema to a structural schema for a CRD."""

from typing import Any

from omni_operator.api.base import VALIDATIONS, Cel

Schema = dict[str, Any]
# Keywords that a CRD may contain. Others are converted to these, dropped, or an error.
KEPT = {
    "type",
    "description",
    "default",
    "enum",
    "format",
    "pattern",
    "required",
    "properties",
    "items",
    "additionalProperties",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
}
DROPPED = {"title", "$defs", "examples"}
KEYS = {"patternProperties", "propertyNames"}
EXTENSION = "x-kubernetes-"


class NotStructural(ValueError):
    """A model uses something that a CRD cannot express."""


def structural(schema: Schema) -> Schema:
    """Return the schema without references, unions with null, titles and other keywords that a CRD may not contain.

    A nullable field becomes an optional field: the API server drops nulls of such fields, and so do our models.

    Raises:
        NotStructural: a CRD cannot express the schema.
    """
    return _node(schema, schema.get("$defs", {}), "")


def _node(given: Schema, definitions: Schema, at: str) -> Schema:
    node = _merged(given, definitions, at)
    structural_node: Schema = {}
    for key, value in node.items():
        if key in KEPT or key.startswith(EXTENSION):
            structural_node[key] = value
        elif key == "const":
            structural_node["enum"] = [value]
        elif key not in DROPPED | KEYS:
            raise NotStructural(f"{at or 'the root'}: {key}")
    _keys_of_a_map(node, structural_node)
    for limit, strict in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        # In a CRD these are flags next to the limit, as in draft 4 of JSON schema.
        if strict in structural_node and not isinstance(structural_node[strict], bool):
            structural_node[limit] = structural_node[strict]
            structural_node[strict] = True
    if "properties" in structural_node:
        structural_node["properties"] = {
            name: _node(inner, definitions, f"{at}.{name}") for name, inner in structural_node["properties"].items()
        }
        structural_node.pop("additionalProperties", None)
        if structural_node.get("default") is not None:
            # Complete, because rules are evaluated on defaults before the fields' own defaults are filled in.
            fields = structural_node["properties"].items()
            structural_node["default"] = {name: inner["default"] for name, inner in fields if "default" in inner}
    elif isinstance(structural_node.get("additionalProperties"), dict):
        structural_node["additionalProperties"] = _node(structural_node["additionalProperties"], definitions, f"{at}.*")
    if "items" in structural_node:
        structural_node["items"] = _node(structural_node["items"], definitions, f"{at}[]")
    if structural_node.get("default", "") is None:
        del structural_node["default"]
    if structural_node.get("type") == "array":
        # Server-side apply replaces lists as a whole, unless they have keys.
        structural_node.setdefault("x-kubernetes-list-type", "atomic")
    return structural_node


def _keys_of_a_map(node: Schema, made: Schema) -> None:
    """A pattern for keys becomes a rule, because a CRD has none."""
    for pattern, values in node.get("patternProperties", {}).items():
        made["additionalProperties"] = values
        rule = f"self.all(key, key.matches(r'{pattern}'))"
        made[VALIDATIONS] = [*made.get(VALIDATIONS, []), Cel(rule, f"keys must match `{pattern}`").entry()]


def _merged(node: Schema, definitions: Schema, at: str) -> Schema:
    """A node merged with its reference, or with its one type besides null; the node's own keywords win."""
    if "$ref" in node:
        name = node["$ref"].rpartition("/")[2]
        keywords = {key: value for key, value in node.items() if key != "$ref"}
        return _joined(_merged(definitions[name], definitions, at), keywords)
    if "anyOf" in node:
        kinds = [kind for kind in node["anyOf"] if kind != {"type": "null"}]
        if len(kinds) != 1:
            raise NotStructural(f"{at}: one of {len(kinds)} kinds")
        keywords = {key: value for key, value in node.items() if key != "anyOf"}
        return _joined(_merged(kinds[0], definitions, at), keywords)
    return node


def _joined(inner: Schema, outer: Schema) -> Schema:
    both = [*inner.get(VALIDATIONS, []), *outer.get(VALIDATIONS, [])]
    return {**inner, **outer, **({VALIDATIONS: both} if both else {})}
