"""A YAML file -> a checked job; every error with file, line and the nearest valid name."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import MarkedYAMLError

from omni_operator.api.job import DiffusionRLJob


class InvalidJob(ValueError):
    """A file is not a usable job; the message has a line for each error."""


def load(path: Path) -> DiffusionRLJob:
    """Read and check one job.

    Raises:
        InvalidJob: the file is missing, is not YAML, or says something that cannot be.
    """
    try:
        document = YAML(typ="rt").load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InvalidJob(f"{path}: no such file") from error
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidJob(f"{path}: cannot be read: {error}") from error
    except MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise InvalidJob(f"{path}:{line}: not YAML: {error.problem}") from error
    if not isinstance(document, dict):
        raise InvalidJob(f"{path}:1: expected one object with apiVersion, kind, metadata and spec")
    try:
        return DiffusionRLJob.model_validate(document)
    except ValidationError as error:
        lines = [_said(path, document, each) for each in error.errors()]
        raise InvalidJob("\n".join(lines)) from error


def _said(path: Path, document: Any, error: Any) -> str:
    location = tuple(error["loc"])
    where = ".".join(str(part) for part in location) or "(the whole file)"
    return f"{path}:{_line(document, location)}: {where}: {_words(error, location)}"


def _words(error: Any, location: tuple[Any, ...]) -> str:
    match error["type"]:
        case "extra_forbidden":
            return "unknown field" + _nearest(location)
        case "missing":
            return "must be given"
        case _:
            message = str(error["msg"]).removeprefix("Value error, ")
            return message[:1].lower() + message[1:]


def _nearest(location: tuple[Any, ...]) -> str:
    names = _field_names(location[:-1])
    near = difflib.get_close_matches(str(location[-1]), names, n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else f"; one of {', '.join(names)}" if names else ""


def _field_names(location: tuple[Any, ...]) -> list[str]:
    model: Any = DiffusionRLJob
    for part in location:
        if not (isinstance(model, type) and issubclass(model, BaseModel)):
            return []
        by_alias = {field.alias or name: field for name, field in model.model_fields.items()}
        field = by_alias.get(str(part))
        if field is None:
            return []
        model = _model_in(field.annotation)
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        return []
    return [field.alias or name for name, field in model.model_fields.items()]


def _model_in(annotation: Any) -> Any:
    """The model inside `Model | None`, and in a mapping the model of its values."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for arg in get_args(annotation) if (found := _model_in(arg)) is not None), None)


def _line(document: Any, location: tuple[Any, ...]) -> int:
    """The line (from 1) of the innermost part of `location` that the file has."""
    line = 0
    node: Any = document  # a tree of ruamel.yaml, whose nodes know their places (.lc)
    for part in location:
        if isinstance(node, CommentedMap) and part in node:
            line, _ = node.lc.key(part)
        elif isinstance(node, CommentedSeq) and isinstance(part, int) and part < len(node):
            line, _ = node.lc.item(part)
        else:
            break
        node = node[part]
    return int(line) + 1
