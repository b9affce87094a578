"""PURE: pydantic's validation errors as messages that name the field and the fix."""

from collections.abc import Iterator, Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from omni_operator.api.base import FORMS, RULE, FieldPath
from omni_operator.api.suggestions import did_you_mean

KINDS = {
    "string_type": "a string",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "tuple_type": "a list",
    "list_type": "a list",
    "int_from_float": "a whole number",
    "finite_number": "a finite number",
}
BOUNDS = {
    "greater_than_equal": ("ge", "at least"),
    "greater_than": ("gt", "more than"),
    "less_than_equal": ("le", "at most"),
    "less_than": ("lt", "less than"),
    "multiple_of": ("multiple_of", "a multiple of"),
}
PARSED = {
    "int_parsing": "a whole number",
    "int_parsing_size": "a whole number with fewer digits",
    "float_parsing": "a number",
}
NAMES = 8


def describe_errors(error: ValidationError, root: type[BaseModel]) -> Iterator[tuple[FieldPath, str]]:
    """The path and the message of every error."""
    details = error.errors()
    for detail in details:
        path: FieldPath = tuple(detail["loc"])
        if detail["type"] == "too_short" and any(_below(listed["loc"], path) for listed in details):
            continue  # pydantic does not count items that failed; their own errors are listed
        if detail["type"] == RULE:
            for violation in detail["ctx"]["violations"]:
                yield path + violation.at, violation.text
        else:
            yield path, _message(dict(detail), path, root)


def _below(inner: FieldPath, outer: FieldPath) -> bool:
    return len(inner) > len(outer) and inner[: len(outer)] == outer


def format_path(path: FieldPath) -> str:
    """`("spec", "reward", "scorers", 0)` -> `spec.reward.scorers[0]`."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".") or "the job"


def _message(detail: dict[str, Any], path: FieldPath, root: type[BaseModel]) -> str:
    kind = detail["type"]
    context = detail.get("ctx", {})
    value = detail.get("input")
    if kind == "extra_forbidden":
        return "unknown field" + nearest_or_all(str(path[-1]), fields_at(root, path[:-1]))
    if kind == "missing":
        return "must be given" + _description(root, path)
    if kind == "literal_error":
        choices = [choice.strip("'") for choice in str(context["expected"]).replace(" or ", ", ").split(", ")]
        one_of = f"{value!r} is not one of {', '.join(choices)}" if len(choices) > 1 else f"must be {choices[0]}"
        return one_of + (did_you_mean(str(value), choices) if len(choices) > 1 else f", not {value!r}")
    if kind in BOUNDS:
        return f"{value!r} must be {_bound(kind, context)}"
    if kind in KINDS:
        quotes = kind == "string_type" and isinstance(value, int | float)  # true and false, too
        return f"must be {KINDS[kind]}, not {_shown(value)}{': write it in quotes' if quotes else ''}"
    if kind == "string_pattern_mismatch":
        form = FORMS.get(context["pattern"])
        return f"{value!r} has the wrong format{f': {form}' if form else _description(root, path)}"
    if kind in ("string_too_long", "too_long"):
        return f"is too long: at most {context['max_length']}"
    if kind in ("string_too_short", "too_short"):
        return f"is too short: at least {context['min_length']}"
    return _own_words(detail)


def describe_value(detail: Mapping[str, Any]) -> str:
    """The message of an error in a value that was given as text, such as an option's value.

    Args:
        detail: an error of pydantic.
    """
    kind = detail["type"]
    value = detail["input"]
    if kind in BOUNDS:
        return f"{value} must be {_bound(kind, detail['ctx'])}"
    if kind in PARSED:
        return f"{value!r} is not {PARSED[kind]}"
    return _own_words(detail)


def _bound(kind: str, context: Mapping[str, Any]) -> str:
    key, words = BOUNDS[kind]
    bound = context[key]
    return f"{words} {bound}" if isinstance(bound, int) else f"{words} {bound:g}"


def _own_words(detail: Mapping[str, Any]) -> str:
    return str(detail["msg"]).removeprefix("Value error, ")


def _shown(value: Any) -> str:
    match value:
        case None:
            return "nothing"
        case dict():
            return "a mapping"
        case list():
            return "a list"
        case bool():
            return str(value).lower()
        case _:
            return repr(value)


def nearest_or_all(name: str, valid: list[str]) -> str:
    """The nearest valid name, or the first ones, as the end of a sentence about an unknown name."""
    if not valid:
        return ""
    more = ", ..." if len(valid) > NAMES else ""
    return did_you_mean(name, valid) or f"; valid fields: {', '.join(valid[:NAMES])}{more}"


def fields_at(root: type[BaseModel], path: FieldPath) -> list[str]:
    """YAML names of the fields that the mapping at `path` may have."""
    model = _model_at(root, path)
    return [info.alias or name for name, info in model.model_fields.items()] if model else []


def _description(root: type[BaseModel], path: FieldPath) -> str:
    model = _model_at(root, path[:-1])
    for name, info in model.model_fields.items() if model else ():
        if path and path[-1] in (name, info.alias) and info.description:
            text = info.description.rstrip(".")
            return f": {text}" if text[:2].isupper() else f": {text[0].lower()}{text[1:]}"  # not "aPI version"
    return ""


def _model_at(root: type[BaseModel], path: FieldPath) -> type[BaseModel] | None:
    model: type[BaseModel] | None = root
    for step in path:
        if isinstance(step, int):
            continue  # the annotation of a list names the model of its items
        annotations = (
            [info.annotation for name, info in model.model_fields.items() if step in (name, info.alias)]
            if model
            else []
        )
        model = next(models_in(annotations[0]), None) if annotations else None
    return model


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """Models in an annotation, such as `Model | None` or `tuple[Model, ...]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from models_in(inner)
