"""A YAML file that remembers where each of its values stands."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from typing_extensions import override

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong with a job, in words, and where: a file and line, or the option that said it."""

    where: str
    text: str

    @override
    def __str__(self) -> str:
        return f"{self.where}: {self.text}"


class JobError(ValueError):
    """A job cannot be used; every problem that was found is in it."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = tuple(problems)


@dataclass(slots=True)
class Document:
    """A parsed YAML mapping.

    Attributes:
        source: what messages call the file.
        tree: ruamel's tree, which keeps comments, order and places.
        assigned: values that `assign` set, and how.
    """

    source: str
    tree: CommentedMap
    assigned: dict[Path, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str, source: str) -> Document:
        """Read one YAML document.

        Raises:
            JobError: it is not YAML, holds a key twice, is not a mapping, or there are several.
        """
        try:
            trees = list(_yaml().load_all(text))
        except MarkedYAMLError as error:
            mark = error.problem_mark
            where = f"{source}:{mark.line + 1}" if mark else source
            reason = (error.problem or str(error)).strip().replace("\n", " ")
            raise JobError([Problem(where, f"not valid YAML: {reason}")]) from error
        except YAMLError as error:
            raise JobError([Problem(source, f"not valid YAML: {error}")]) from error
        trees = [tree for tree in trees if tree is not None]
        if len(trees) != 1 or not isinstance(trees[0], CommentedMap):
            found = f"{len(trees)} documents" if len(trees) != 1 else "a list or a single value"
            raise JobError([Problem(source, f"expected one job, found {found}")])
        return cls(source, trees[0])

    def assign(self, assignment: str) -> None:
        """Set a value as `spec.trainer.totalSteps=10` says; the value is YAML. Missing mappings are made.

        Raises:
            JobError: it is not name=value, the value is not YAML, or the name leads into a text or number.
        """
        where = f"--set {assignment}"
        name, equals, text = assignment.partition("=")
        if not name or not equals:
            raise JobError([Problem(where, "write spec.field=value")])
        try:
            value = _yaml().load(text)
        except YAMLError as error:
            raise JobError([Problem(where, f"the value is not valid YAML: {text!r}")]) from error
        *parents, last = path = _path(name)
        node: Any = self.tree
        for step in parents:
            node = _child(node, step, where)
        _put(node, last, value, where)
        self.assigned[path] = where

    def replace(self, path: Path, value: str) -> None:
        """Set a value that is there already."""
        node: Any = self.tree
        for step in path[:-1]:
            node = node[step]
        if node[path[-1]] != value:
            node[path[-1]] = value

    def plain(self) -> dict[str, Any]:
        """The values, as dicts, lists and scalars."""
        plain = _plain(self.tree)
        assert isinstance(plain, dict)
        return plain

    def where(self, path: Path) -> str:
        """Where the value at `path` was said, or the nearest thing around it that exists."""
        for length in range(len(path), 0, -1):
            if said := self.assigned.get(path[:length]):
                return said
        node: Any = self.tree
        line = 0
        for step in path:
            if isinstance(node, CommentedMap) and step in node:
                line = node.lc.key(step)[0] if step in (node.lc.data or {}) else line
            elif isinstance(node, CommentedSeq) and isinstance(step, int) and step < len(node):
                line = node.lc.item(step)[0] if step in (node.lc.data or {}) else line
            else:
                break
            node = node[step]
        return f"{self.source}:{line + 1}"

    def dump(self) -> str:
        """YAML text, comments included."""
        stream = io.StringIO()
        _yaml().dump(self.tree, stream)
        return stream.getvalue()


def _yaml() -> YAML:
    yaml = YAML(typ="rt")
    yaml.preserve_quotes = True
    yaml.width = 4096
    return yaml


def _path(name: str) -> Path:
    return tuple(int(part) if part.isdigit() else part for part in name.split("."))


def _child(node: Any, step: str | int, where: str) -> Any:
    if isinstance(node, CommentedMap) and node.get(step) is None:
        node[step] = CommentedMap()
    if isinstance(node, CommentedMap) or (isinstance(node, CommentedSeq) and _has(node, step)):
        return node[step]
    raise JobError([Problem(where, f"there is nothing at {step!r}")])


def _put(node: Any, step: str | int, value: Any, where: str) -> None:
    if isinstance(node, CommentedMap) or (isinstance(node, CommentedSeq) and _has(node, step)):
        node[step] = value
    else:
        raise JobError([Problem(where, f"there is nothing at {step!r}")])


def _has(node: CommentedSeq, step: str | int) -> bool:
    return isinstance(step, int) and step < len(node)


def _plain(node: Any) -> Any:
    """ruamel's scalars are subclasses of Python's; models get Python's own."""
    if isinstance(node, CommentedMap):
        return {str(key): _plain(value) for key, value in node.items()}
    if isinstance(node, CommentedSeq):
        return [_plain(item) for item in node]
    for kind in (bool, int, float, str):
        if isinstance(node, kind):
            return kind(node)
    return node
