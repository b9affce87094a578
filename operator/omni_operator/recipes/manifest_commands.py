"""PURE: the commands in a YAML file: the entry point of a RayJob, and containers of pods."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from omni_operator.api.files.yaml_document import plain_values
from omni_operator.api.files.yaml_parser import make_yaml

# No command of a shell begins so: a key with a colon, a list, the start of a document, a template.
_BEGINNING = re.compile(
    r"""(?:\s|\#[^\n]*\n)*(?:---|%YAML|\{\{|-[ ]|\{\s*"|["']?[A-Za-z_][\w./-]*["']?:(?:\s|\Z))""", re.VERBOSE
)
_OF_KUBERNETES = re.compile(r"\$\$|\$\(([A-Za-z_]\w*)\)")
_SHELL = re.compile(r"(?:.*/)?(?:bash|sh)")
_SHELL_OPTION = re.compile(r"-\w*c")


class RecipeError(ValueError):
    """A file that does not start the trainer, or starts another one."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command of a file, as text for a shell.

    Attributes:
        name: what messages call it.
        environment: variables that are set for it; None for one whose value is not in the file.
    """

    name: str
    text: str
    environment: Mapping[str, str | None] = field(default_factory=dict)


class _Part(BaseModel):
    model_config = ConfigDict(coerce_numbers_to_str=True)


class _Variable(_Part):
    name: str
    value: str | None = None


class _Container(_Part):
    name: str = ""
    command: list[str] = []
    args: list[str] = []
    env: list[_Variable] = []


class _PodSpec(_Part):
    containers: list[_Container] = Field(min_length=1)


class _PodTemplate(_Part):
    spec: _PodSpec


class _Group(_Part):
    template: _PodTemplate


class _RayCluster(_Part):
    head: _Group = Field(alias="headGroupSpec")


class _RayJobSpec(_Part):
    entrypoint: str = ""
    runtime: str = Field("", alias="runtimeEnvYAML")
    cluster: _RayCluster | None = Field(None, alias="rayClusterSpec")


class _RuntimeEnvironment(_Part):
    env_vars: dict[str, str] = {}


def commands_in(text: str) -> tuple[Command, ...]:
    """The commands of a YAML file; none of a text that may be a shell script.

    Raises:
        RecipeError: the text is YAML, or its template, in which there is no command.
    """
    if not _BEGINNING.match(text):
        return ()
    try:
        documents = [plain_values(tree) for tree in make_yaml().load_all(text)]
        commands = tuple(command for document in documents for command in _commands(document, ""))
    except YAMLError as error:
        reason = ""
        if isinstance(error, MarkedYAMLError) and error.problem_mark:
            reason = f" (line {error.problem_mark.line + 1}: {error.problem})"
        raise RecipeError(f"neither a shell script nor YAML{reason}; render a template first") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise RecipeError(f"not a shell script; as YAML, {where} cannot be read: {first['msg']}") from error
    if not commands:
        raise RecipeError(
            "not a shell script; of YAML, the entry point of a RayJob and the commands of containers are read: copy "
            "the command into a shell script"
        )
    return commands


def _commands(node: Any, path: str) -> Iterator[Command]:
    """Commands of a document, wherever its pods are."""
    if isinstance(node, list):
        for place, item in enumerate(node):
            yield from _commands(item, f"{path}[{place}]")
    elif isinstance(node, dict):
        if node.get("kind") == "RayJob":
            yield from _ray_job(_RayJobSpec.model_validate(node.get("spec")))
            return
        for key, value in node.items():
            at = f"{path}.{key}".lstrip(".")
            if key == "containers" and isinstance(value, list):
                yield from _containers(_PodSpec.model_validate({"containers": value}), at)
            else:
                yield from _commands(value, at)


def _ray_job(spec: _RayJobSpec) -> Iterator[Command]:
    if spec.entrypoint:
        runtime = _RuntimeEnvironment.model_validate(make_yaml().load(spec.runtime) or {})
        container = spec.cluster.head.template.spec.containers[0] if spec.cluster else _Container()
        environment = _environment(container.env) | {**runtime.env_vars}
        yield Command("spec.entrypoint", spec.entrypoint, environment)


def _containers(pod: _PodSpec, path: str) -> Iterator[Command]:
    for place, container in enumerate(pod.containers):
        words = [*container.command, *container.args]
        if words:
            environment = _environment(container.env)
            name = f"{path}[{place}]"
            yield _command(name, [_expanded(word, environment) for word in words], environment)


def _environment(variables: Sequence[_Variable]) -> dict[str, str | None]:
    environment: dict[str, str | None] = {}
    for variable in variables:
        text = variable.value
        environment[variable.name] = None if text is None else _expanded(text, environment)
    return environment


def _expanded(text: str, environment: Mapping[str, str | None]) -> str:
    """A text with values for Kubernetes' `$(NAME)`; one that is not known becomes `${NAME}`."""

    def value(match: re.Match[str]) -> str:
        if match[1] is None:
            return "$"
        known = environment.get(match[1], match[0])
        return f"${{{match[1]}}}" if known is None else known

    return _OF_KUBERNETES.sub(value, text)


def _command(name: str, words: Sequence[str], environment: Mapping[str, str | None]) -> Command:
    """A command that no shell reads, or the text that it gives to a shell."""
    if len(words) == 3 and _SHELL.fullmatch(words[0]) and _SHELL_OPTION.fullmatch(words[1]):
        return Command(name, words[2], environment)
    return Command(name, shlex.join(words), environment)
