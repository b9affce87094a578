"""PURE: fields of a model that a cluster's definition of the kind does not have."""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from omni_operator.api.validation_messages import models_in


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
        elif inner := next(models_in(field.annotation), None):
            yield from find_missing(inner, known[key], f"{at}.{key}")
