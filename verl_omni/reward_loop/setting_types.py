"""PURE: types of scorers' settings, and values with a wrong type."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, get_type_hints

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

Seconds = Annotated[float, Field(gt=0)]
Attempts = Annotated[int, Field(ge=1)]
Tokens = Annotated[int, Field(ge=1)]
Interval = Annotated[int, Field(ge=1)]
NotNegative = Annotated[float, Field(ge=0)]
Retries = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Quality = Annotated[int, Field(ge=1, le=100)]
# An integer is a number, but a text is not, and neither are true, infinity and NaN.
_EXACT = ConfigDict(strict=True, allow_inf_nan=False)


def value_problems(scorer: Callable[..., Any], given: Mapping[str, Any]) -> Iterator[str]:
    """Messages about values that do not have the type of the scorer's parameter."""
    hints = get_type_hints(scorer, include_extras=True)
    for name, value in given.items():
        try:
            TypeAdapter(hints[name], config=_EXACT).validate_python(value)
        except ValidationError as error:
            said = str(error.errors()[0]["msg"]).removeprefix("Input ")
            yield f"{name}: {'null' if value is None else value} {said}"
