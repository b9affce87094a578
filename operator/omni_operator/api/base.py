"""Base classes of the API's models: strict parsing, camelCase in YAML, rules between fields.

A rule between fields is a `Rule`, from which come the CEL of the API server and the check of a model, whose message
has file and line. A `Cel` is a rule about changes. `violations()` has what a CRD cannot say, such as names of scorers.
A test on a real API server checks that both agree. A message does not repeat the path of its field, and names other
fields in full, as `spec.model.lora.enabled`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from string import Formatter
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, GetJsonSchemaHandler, StringConstraints, model_validator
from pydantic.alias_generators import to_camel, to_snake
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError
from typing_extensions import override

from .cel_expressions import ITEM, holds, to_cel

RULE = "job_rule"
VALIDATIONS = "x-kubernetes-validations"
FieldPath = tuple[str | int, ...]  # names of fields and indices of list items


@dataclass(frozen=True, slots=True)
class Cel:
    """A CEL rule of the API server.

    Attributes:
        rule: a CEL expression that is true for accepted values; with `oldSelf` it is a rule about changes.
        message: what is wrong and how to correct it.
        path: the field that is wrong, relative to the model of the rule, e.g. `.rollout.replicas`.
    """

    rule: str
    message: str
    path: str = ""

    def entry(self) -> dict[str, str]:
        """The entry of `x-kubernetes-validations`."""
        rule = {"rule": self.rule, "message": self.message}
        return {**rule, "fieldPath": self.path} if self.path else rule


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken rule between fields.

    Attributes:
        at: the field that is wrong, as YAML names relative to the model of the rule.
        text: what is wrong and how to correct it.
    """

    at: FieldPath
    text: str


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule between fields of a model.

    Attributes:
        condition: a Python expression about `self` that is true for accepted values (`cel_expressions.py`).
        at: the field that is wrong, relative to the model, in YAML's names with dots.
        message: what is wrong and how to correct it.
        shown: the same with values, such as `is {self.replicas}`; None: the message.
        path: field that the API server names, if it is an outer one.
        each: whether `at` is a list, and the condition is about each `item` of it.
    """

    condition: str
    at: str
    message: str
    shown: str | None = None
    path: str | None = None
    each: bool = False

    def entry(self) -> dict[str, str]:
        """The entry of `x-kubernetes-validations`."""
        name = f"self.{to_snake(self.at)}"
        condition = f"{name} is None or all({self.condition} for {ITEM} in {name})" if self.each else self.condition
        path = self.path or self.at
        return Cel(to_cel(condition), self.message, f".{path}" if path else "").entry()

    def violations(self, model: BaseModel) -> Iterator[Violation]:
        """What is wrong with a model."""
        at: FieldPath = tuple(self.at.split(".")) if self.at else ()
        if not self.each:
            if not holds(self.condition, model):
                yield Violation(at, self._text(model))
            return
        for index, item in enumerate(getattr(model, to_snake(self.at))):
            if not holds(self.condition, model, item):
                yield Violation((*at, index), self._text(model, item))

    def _text(self, model: BaseModel, item: Any = None) -> str:
        return self.message if self.shown is None else _Values().format(self.shown, self=model, item=item)


class _Values(Formatter):
    """Formats the values of fields; one that is absent is `not given`."""

    @override
    def format_field(self, value: Any, format_spec: str) -> str:
        return "not given" if value is None else str(super().format_field(value, format_spec))


def immutable(what: str) -> dict[str, Any]:
    """Schema of a field that may not change after the job is created."""
    return {VALIDATIONS: [Cel("self == oldSelf", f"{what} cannot change; delete the job and create a new one").entry()]}


def without_nulls(value: Any) -> Any:
    """A mapping without its nulls: to the API server, `field: null` means that the field is absent."""
    if isinstance(value, dict):
        return {key: item for key, item in value.items() if item is not None}
    return value


def whole(value: Any) -> Any:
    """An integer for a float without a fraction."""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**63 else value


# Patterns of texts, and what messages say about a text that does not match.
_LINE = r"^[^\x00-\x1f\x7f]+$"  # control characters would break files with one setting per line
_OBJECT_NAME = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"  # a DNS-1123 subdomain
_KEY = r"^[a-z][a-z0-9_]*$"
_DATA_KEY = r"^[-._a-zA-Z0-9]+$"
_LABEL_KEY = r"^([a-z0-9.-]+/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
_ABSOLUTE_PATH = r"^/[^\x00-\x1f\x7f:]*$"
_QUANTITY = r"^[0-9]+(\.[0-9]{1,9})?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$"
FORMS = {
    _LINE: "one line, without control characters",
    _OBJECT_NAME: "lower-case letters, digits, '-' and '.', a letter or digit first and last",
    _KEY: "lower-case letters, digits and '_', a letter first",
    _DATA_KEY: "letters, digits, '-', '_' and '.'",
    _LABEL_KEY: "letters, digits, '-', '_' and '.', which may follow a domain and '/'",
    _ABSOLUTE_PATH: "an absolute path, without ':'",
    _QUANTITY: "a quantity, such as 4, 500m or 16Gi",
}

Line = Annotated[str, StringConstraints(min_length=1, max_length=4096, pattern=_LINE)]
# A scorer's name is a key of the trainer's settings and a part of a metric's name.
Key = Annotated[str, StringConstraints(max_length=63, pattern=_KEY)]
# Names of objects, and keys of Secrets and ConfigMaps.
ObjectName = Annotated[str, StringConstraints(min_length=1, max_length=253, pattern=_OBJECT_NAME)]
DataKey = Annotated[str, StringConstraints(min_length=1, max_length=253, pattern=_DATA_KEY)]
LabelKey = Annotated[str, StringConstraints(max_length=317, pattern=_LABEL_KEY)]
AbsolutePath = Annotated[str, StringConstraints(max_length=1024, pattern=_ABSOLUTE_PATH)]
Quantity = Annotated[str, StringConstraints(min_length=1, max_length=32, pattern=_QUANTITY)]
NullFree = BeforeValidator(without_nulls)


# An object or folder in an S3-compatible store.
S3_URL = re.compile(r"^s3://[A-Za-z0-9][A-Za-z0-9._-]*/[^/].*$")


def remote_scheme(path: str) -> str | None:
    """`s3` of `s3://bucket/key`; None for a path of the file system."""
    scheme, separator, _ = path.partition("://")
    return scheme if separator else None


def is_in_store(path: str) -> bool:
    """Whether a path is the URL of something in an S3-compatible store."""
    return S3_URL.search(path) is not None


class StrictModel(BaseModel):
    """A part of a job: immutable, without unknown fields, and without conversion of strings to numbers."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        alias_generator=to_camel,
        validate_by_name=False,
        validate_by_alias=True,
        defer_build=True,
    )

    cel: ClassVar[tuple[Cel | Rule, ...]] = ()

    def violations(self) -> Iterator[Violation]:
        """Broken rules between the fields of this model."""
        for rule in self.cel:
            if isinstance(rule, Rule):
                yield from rule.violations(self)

    @model_validator(mode="before")
    @classmethod
    def _like_the_api_server(cls, value: Any) -> Any:
        """Null in a known field means that it is absent, and 3.0 is a whole number."""
        if isinstance(value, dict):
            known = names_of(cls)
            return {key: whole(item) for key, item in value.items() if item is not None or key not in known}
        return value

    @model_validator(mode="after")
    def _hold_rules(self) -> Self:
        if violations := list(self.violations()):
            context: dict[str, Any] = {"violations": violations}
            raise PydanticCustomError(RULE, "broken rules between fields", context)
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """The JSON schema with this model's rules."""
        schema = handler.resolve_ref_schema(handler(core_schema))
        if cls.cel:
            schema[VALIDATIONS] = [rule.entry() for rule in cls.cel]
        return schema


def separate_only(text: str, *names: str) -> Iterator[Rule]:
    """Rules that fields of a model with `placement` are for Separate, which say this text; by the names in YAML."""
    for name in names:  # first what most jobs lack: to look up a field costs more than anything else in a rule
        yield Rule(f"self.{to_snake(name)} is None or self.placement == 'Separate'", name, text)


@cache
def names_of(model: type[BaseModel]) -> frozenset[str]:
    """Names of a model's fields in YAML."""
    return frozenset(field.alias or name for name, field in model.model_fields.items())


class LenientModel(BaseModel):
    """A part of an object that the operator or the cluster writes: unknown fields are ignored, values are converted."""

    model_config = ConfigDict(
        extra="ignore",
        frozen=True,
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
        defer_build=True,
    )

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, value: Any) -> Any:
        return without_nulls(value)
