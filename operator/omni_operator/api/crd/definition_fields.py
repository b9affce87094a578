"""PURE: fields of a model that a cluster's definition of the kind does not have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, get_args

from pydantic import BaseModel


def find_missing(model: type[BaseModel], schema: Mapping[str, Any], at: str) -> Iterator[str]:
    """Paths of the fields of a model that are not in a schema, the outermost ones only.

    Args:
        schema: the OpenAPI schema of the model's object, or of a list of them.
        at: path of the model.
    """
    known = schema.get("items", schema).get("properties") or {}
    for name, field in model.model_fields.items():
        key = field.alias or name
        if key not in known:
            yield f"{at}.{key}"
        elif inner := _model_of(field.annotation):
            yield from find_missing(inner, known[key], f"{at}.{key}")


def _model_of(annotation: Any) -> type[BaseModel] | None:
    """The model in `Model`, `Model | None` or `tuple[Model, ...]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for inner in get_args(annotation) if (found := _model_of(inner))), None)
