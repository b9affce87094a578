"""A YAML document that keeps the line number of every value."""

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from typing_extensions import override

from omni_operator.api.base import FieldPath

from .yaml_parser import make_yaml


@dataclass(frozen=True, slots=True)
class Problem:
    """An error in a job.

    Attributes:
        where: file and line, or the option that set the value.
        text: what is wrong and how to fix it.
        field: the field, e.g. `spec.trainer.totalSteps`; empty if the problem is not about a field.
    """

    where: str
    text: str
    field: str = ""

    @override
    def __str__(self) -> str:
        return ": ".join(part for part in (self.where, self.field, self.text) if part)


class JobError(ValueError):
    """An invalid job, with every problem found."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = tuple(problems)


@dataclass(slots=True)
class Document:
    """A parsed YAML mapping.

    Attributes:
        source: what messages call the file.
        tree: ruamel's tree, which keeps comments, order and line numbers.
        assigned: the paths that `assign` set, with the option that set each.
        others: the other objects of the file, each with kind, name and line.
    """

    source: str
    tree: CommentedMap
    assigned: dict[FieldPath, str] = field(default_factory=dict)
    others: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str, source: str, kind: str | None = None) -> Self:
        """Read one YAML document.

        Args:
            kind: the kind of object to take from several documents, or from the items of a `kind: List`.

        Raises:
            JobError: the text is not YAML, repeats a key, is not a mapping, or does not hold one such document.
        """
        try:
            trees = list(make_yaml().load_all(text))
        except MarkedYAMLError as error:
            mark = error.problem_mark
            where = f"{source}:{mark.line + 1}" if mark else source
            raise JobError([Problem(where, f"not valid YAML: {_reason(error)}")]) from error
        except YAMLError as error:
            raise JobError([Problem(source, f"not valid YAML: {error}")]) from error
        trees = [tree for tree in trees if tree is not None]
        objects = [item for tree in trees for item in _items(tree)]
        if len(objects) == 1 and isinstance(objects[0], CommentedMap):
            return cls(source, objects[0])
        jobs = [tree for tree in objects if kind is not None and _kind(tree) == kind]
        if len(jobs) != 1:
            description = f"{len(objects)} documents" if len(objects) != 1 else "a list or a single value"
            if kind is not None and len(objects) > 1:
                description = ", ".join(map(_describe, jobs or objects)) + ("; write each to a file" if jobs else "")
            expected = "one job" if kind is not None else "one mapping of settings"
            raise JobError([Problem(source, f"expected {expected}, found {description}")])
        return cls(source, jobs[0], others=tuple(_describe(tree) for tree in objects if tree is not jobs[0]))

    def assign(self, assignment: str) -> None:
        """Apply an assignment such as `spec.trainer.totalSteps=10`. The value is YAML; missing mappings are created.

        Raises:
            JobError: not name=value, the value is not YAML, the path does not exist, or it (or a part of it) was
                assigned before.
        """
        where = f"--set {assignment}"
        name, equals, text = assignment.partition("=")
        if not name or not equals:
            raise JobError([Problem(where, "write spec.field=value")])
        try:
            value = make_yaml().load(text)
        except YAMLError as error:
            reason = f": {_reason(error)}" if isinstance(error, MarkedYAMLError) and error.problem else ""
            raise JobError([Problem(where, f"the value is not valid YAML: {text!r}{reason}")]) from error
        *parents, last = path = _path(name)
        if earlier := self._made_by(path):
            raise JobError([Problem(where, f"already set by {earlier}; remove one of the two")])
        node: Any = self.tree
        for step in parents:
            node = _child(node, step, where)
        _put(node, last, value, where)
        self.assigned[path] = where

    def replace(self, path: FieldPath, value: str) -> None:
        """Replace an existing value."""
        node: Any = self.tree
        for step in path[:-1]:
            node = node[step]
        if node[path[-1]] != value:
            node[path[-1]] = value

    def plain(self) -> dict[str, Any]:
        """The values, as dicts, lists and scalars."""
        plain = plain_values(self.tree)
        assert isinstance(plain, dict)
        return plain

    def where(self, path: FieldPath) -> str:
        """File and line, or option, of the value at `path` or of its nearest existing parent."""
        for length in range(len(path), 0, -1):
            if option := self.assigned.get(path[:length]):
                return option
        node: Any = self.tree
        line = self.tree.lc.line if self.others else 0
        for depth, step in enumerate(path):
            if isinstance(node, CommentedMap) and step in node:
                if step not in (node.lc.data or {}) and (option := self._made_by(path[: depth + 1])):
                    return option
                line = node.lc.key(step)[0] if step in (node.lc.data or {}) else line
            elif isinstance(node, CommentedSeq) and isinstance(step, int) and step < len(node):
                line = node.lc.item(step)[0] if step in (node.lc.data or {}) else line
            else:
                break
            node = node[step]
        return f"{self.source}:{line + 1}"

    def _made_by(self, path: FieldPath) -> str | None:
        """The first assignment of the value at `path`, or of one in it."""
        return next((option for assigned, option in self.assigned.items() if assigned[: len(path)] == path), None)

    def dump(self) -> str:
        """The YAML text, with comments."""
        stream = io.StringIO()
        make_yaml().dump(self.tree, stream)
        return stream.getvalue()


def _items(tree: Any) -> list[Any]:
    """The objects of a document: itself, or the items of a `kind: List`."""
    if _kind(tree) == "List" and isinstance(tree.get("items"), CommentedSeq):
        return list(tree["items"])
    return [tree]


def _kind(tree: Any) -> Any:
    return tree.get("kind") if isinstance(tree, CommentedMap) else None


def _describe(tree: Any) -> str:
    """Kind, name and line of an object."""
    if not isinstance(tree, CommentedMap):
        return "a list or a single value"
    metadata = tree.get("metadata")
    name = metadata.get("name") if isinstance(metadata, CommentedMap) else None
    return f"{_kind(tree) or 'a mapping without kind'}{f' {name}' if name else ''} (line {tree.lc.line + 1})"


def _reason(error: MarkedYAMLError) -> str:
    return (error.problem or str(error)).strip().replace("\n", " ")


def _path(name: str) -> FieldPath:
    """The path of `spec.reward.scorers.0.name`, or as problems write it, `spec.reward.scorers[0].name`."""
    dotted = re.sub(r"\[(\d+)\]", r".\1", name)
    return tuple(int(part) if is_index(part) else part for part in dotted.split("."))


def is_index(text: str) -> bool:
    """Whether a text is a whole number with few digits, such as the place of a list's item or a line's number."""
    return text.isdecimal() and len(text) < 10


def _child(node: Any, step: str | int, where: str) -> Any:
    if isinstance(node, CommentedMap) and node.get(step) is None:
        node[step] = CommentedMap()
    if isinstance(node, CommentedMap) or (isinstance(node, CommentedSeq) and _has(node, step)):
        return node[step]
    raise JobError([Problem(where, f"no such path: there is nothing at {step!r}")])


def _put(node: Any, step: str | int, value: Any, where: str) -> None:
    if isinstance(node, CommentedMap) or (isinstance(node, CommentedSeq) and _has(node, step)):
        node[step] = value
    else:
        raise JobError([Problem(where, f"no such path: there is nothing at {step!r}")])


def _has(node: CommentedSeq, step: str | int) -> bool:
    return isinstance(step, int) and step < len(node)


def plain_values(node: Any) -> Any:
    """The values of a part of a document as plain Python types instead of ruamel's subclasses."""
    if isinstance(node, CommentedMap):
        names = (str(key).lower() if isinstance(key, bool) else str(key) for key in node)
        return dict(zip(names, map(plain_values, node.values()), strict=True))
    if isinstance(node, CommentedSeq):
        return [plain_values(item) for item in node]
    for kind in (bool, int, float, str):
        if isinstance(node, kind):
            return kind(node)
    return node
