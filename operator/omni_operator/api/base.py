"""What every model of the API shares: strict parsing, camelCase in YAML, rules that point at a field."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, StringConstraints, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

RULE = "job_rule"

# Control characters would break files that hold one setting a line.
Line = Annotated[str, StringConstraints(min_length=1, max_length=4096, pattern=r"^[^\x00-\x1f\x7f]+$")]


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule between fields that does not hold.

    Attributes:
        at: the field to look at, as YAML names below the model that states the rule.
        text: what is wrong and what would be right, in words.
    """

    at: tuple[str | int, ...]
    text: str


class Strict(BaseModel):
    """A part of a job: unknown fields are refused, numbers are not read out of texts, nothing changes later."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        alias_generator=to_camel,
        validate_by_name=False,
        validate_by_alias=True,
    )

    def rules(self) -> Iterator[Violation]:
        """Rules between the fields of this model that do not hold."""
        yield from ()

    @model_validator(mode="after")
    def _hold_rules(self) -> Self:
        if violations := list(self.rules()):
            context: dict[str, Any] = {"violations": violations}
            raise PydanticCustomError(RULE, "rules do not hold", context)
        return self
