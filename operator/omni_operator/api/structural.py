"""PURE: JSON schema as pydantic writes it -> a structural schema as the API server reads it."""

from __future__ import annotations

from typing import Any

from .base import VALIDATIONS, Cel

Schema = dict[str, Any]
# Of a definition in a CRD; whatever else pydantic writes is turned into these, dropped, or an error.
KEPT = {
    "type", "description", "default", "enum", "format", "pattern", "required", "properties", "items",
    "additionalProperties", "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties",
    "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
}  # fmt: skip
DROPPED = {"title", "$defs", "examples"}
KEYS = {"patternProperties", "propertyNames"}
EXTENSION = "x-kubernetes-"


class NotStructural(ValueError):
    """A model says something that a CRD cannot."""


def structural(schema: Schema) -> Schema:
    """The same schema without references, unions with null, titles and whatever a CRD may not have.

    A field that may be null becomes a field that may be missing: the API server drops nulls of such fields, and so do
    our models.

    Raises:
        NotStructural: the schema has something that cannot be said in a CRD.
    """
    return _node(schema, schema.get("$defs", {}), "")


def _node(given: Schema, definitions: Schema, at: str) -> Schema:
    node = _merged(given, definitions, at)
    made: Schema = {}
    for key, value in node.items():
        if key in KEPT or key.startswith(EXTENSION):
            made[key] = value
        elif key == "const":
            made["enum"] = [value]
        elif key not in DROPPED | KEYS:
            raise NotStructural(f"{at or 'the root'}: {key}")
    _keys_of_a_map(node, made)
    for limit, strict in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        # A CRD's are flags beside the limit, as in draft 4 of JSON schema.
        if strict in made and not isinstance(made[strict], bool):
            made[limit], made[strict] = made[strict], True
    if "properties" in made:
        made["properties"] = {
            name: _node(inner, definitions, f"{at}.{name}") for name, inner in made["properties"].items()
        }
        made.pop("additionalProperties", None)
        if made.get("default") is not None:
            # Whole, because rules are tried on defaults before the fields' own are filled in.
            fields = made["properties"].items()
            made["default"] = {name: inner["default"] for name, inner in fields if "default" in inner}
    elif isinstance(made.get("additionalProperties"), dict):
        made["additionalProperties"] = _node(made["additionalProperties"], definitions, f"{at}.*")
    if "items" in made:
        made["items"] = _node(made["items"], definitions, f"{at}[]")
    if made.get("default", "") is None:
        del made["default"]
    return _named(made)


def _keys_of_a_map(node: Schema, made: Schema) -> None:
    """A CRD has no pattern for keys: it becomes a rule."""
    for pattern, values in node.get("patternProperties", {}).items():
        made["additionalProperties"] = values
        rule = f"self.all(key, key.matches(r'{pattern}'))"
        made[VALIDATIONS] = [*made.get(VALIDATIONS, []), Cel(rule, f"keys: must match `{pattern}`").entry()]


def _merged(node: Schema, definitions: Schema, at: str) -> Schema:
    """A node with what it refers to, or the one kind it may be beside null; what the node says itself wins."""
    if "$ref" in node:
        name = node["$ref"].rpartition("/")[2]
        rest = {key: value for key, value in node.items() if key != "$ref"}
        return _joined(_merged(definitions[name], definitions, at), rest)
    if "anyOf" in node:
        kinds = [kind for kind in node["anyOf"] if kind != {"type": "null"}]
        if len(kinds) != 1:
            raise NotStructural(f"{at}: one of {len(kinds)} kinds")
        rest = {key: value for key, value in node.items() if key != "anyOf"}
        return _joined(_merged(kinds[0], definitions, at), rest)
    return node


def _joined(inner: Schema, outer: Schema) -> Schema:
    both = [*inner.get(VALIDATIONS, []), *outer.get(VALIDATIONS, [])]
    return {**inner, **outer, **({VALIDATIONS: both} if both else {})}


def _named(node: Schema) -> Schema:
    """Lists of values are replaced as a whole; bounds of maps are called after properties."""
    if node.get("type") == "array":
        node.setdefault("x-kubernetes-list-type", "atomic")
    return node
