"""Random documents from an OpenAPI schema, valid and slightly wrong ones; the same seed makes the same documents."""

import copy
import random
import string
from collections.abc import Iterator, Sequence
from typing import Any

Node = dict[str, Any]
Path = tuple[str, ...]
DEPTH = 4  # depth of optional fields; deeper fields appear through changes of single fields
WRONG: dict[str, list[Any]] = {
    "string": [1, 2.5, True, [], {}, "", "\x07", "a" * 5000, "ä ö", "A/B/C", "-", "a\n"],
    "boolean": [0, 1, "true", [], {}],
    "integer": ["1", 1.5, True, [], {}, 2**63, -(2**70), 1e300],
    "number": ["1", True, [], {}],
    "array": ["a", 1, {}, [None], [[]], [{}], ["a", "a"], [1] * 600],
    "object": ["a", 1, [], {"": 1}, {"A b": "1"}, {"a": 1}, {"a": None}, {"unknown": {"a": None}}],
}
OPEN_VALUES: list[Any] = ["a", 1, 2.0, 2.5, True, None, [1, "a"], [1.0], [None], [], {}, {"a": 1}, "a\nb"]


class Documents:
    """A source of random documents.

    Attributes:
        schema: schema of the documents that `change` changes.
    """

    def __init__(self, seed: int, schema: Node) -> None:
        self.schema = schema
        self._random = random.Random(seed)
        self._fields = list(_fields(schema, ()))

    def pick(self, values: Sequence[Any]) -> Any:
        """One of the values."""
        return copy.deepcopy(self._random.choice(values))

    def chance(self, share: float) -> bool:
        """True in this share of the calls."""
        return self._random.random() < share

    def change(self, document: Any) -> None:
        """Set one field somewhere below `schema` to a right or wrong value, and what is missing on the way to it."""
        path, node = self._random.choice(self._fields)
        at = document
        inside = self.schema
        for step in path[:-1]:
            at, inside = self._enter(at, inside, step)
            if at is None:
                return  # a wrong value is in the way
        if isinstance(at, dict):
            if self.chance(0.08):
                at[self.pick(["unknwon", "", path[-1].upper()])] = self.pick([None, 1, self.value(node)])
            else:
                kind = self._random.random()
                at[path[-1]] = self.value(node) if kind > 0.3 else None if kind > 0.22 else self.wrong(node)

    def _enter(self, at: Any, node: Node, step: str) -> tuple[Any, Node]:
        if step == "[]":
            if isinstance(at, list) and not at:
                at.append({})
            return (at[0] if isinstance(at, list) else None), node["items"]
        inner = node["properties"].get(step) if "properties" in node else None
        if not isinstance(at, dict) or inner is None:
            return None, node
        if at.get(step) is None:
            at[step] = self._holder(inner)
        return at[step], inner

    def _holder(self, node: Node) -> Any:
        if node.get("type") == "array":
            return []
        return {name: self.value(node["properties"][name]) for name in node.get("required", ())}

    def wrong(self, node: Node) -> Any:
        """A value of another type, or out of bounds."""
        values = [*WRONG.get(node.get("type", "object"), WRONG["object"])]
        values += [node[name] + step for name, step in (("minimum", -1), ("maximum", 1)) if name in node]
        return self.pick(values)

    def value(self, node: Node, depth: int = 0) -> Any:
        """A value within the bounds of its schema; it may break rules between fields."""
        if "enum" in node:
            return self.pick(node["enum"])
        if node.get("x-kubernetes-int-or-string"):
            return self.pick([1, "1", 80, "500m", "1Gi", "http", "4 Gi", 1.5, 2.0])
        match node.get("type"):
            case "string":
                return self._text(node)
            case "boolean":
                return self.chance(0.5)
            case "integer":
                return self._integer(node)
            case "number":
                low = node.get("minimum", 0)
                high = node.get("maximum", 9)
                return self.pick([low, high, 1, 0.5, 1.0])
            case "array":
                return [self.value(node["items"], depth + 1) for _ in range(self._random.randrange(3))]
            case "object" if "properties" in node:
                return self._mapping(node, depth)
            case "object" if isinstance(node.get("additionalProperties"), dict):
                key = self.pick(["a", "cpu", "memory", "x.y/z", "", "A b", "team", "a" * 70, "diffusionrl.io/job"])
                return {key: self.value(node["additionalProperties"], depth + 1)}
            case _:
                return self.pick(OPEN_VALUES)

    def _mapping(self, node: Node, depth: int) -> Any:
        mapping = {name: self.value(node["properties"][name], depth + 1) for name in node.get("required", ())}
        optional = [name for name in node["properties"] if name not in mapping]
        if depth < DEPTH and optional:
            for name in self._random.sample(optional, min(len(optional), self._random.randrange(3))):
                mapping[name] = self.value(node["properties"][name], depth + 1)
        return mapping

    def _integer(self, node: Node) -> Any:
        low = node.get("minimum", 0)
        high = node.get("maximum", 65535)
        number = self.pick([low, high, low + 1, min(high, 8)])
        step = node.get("multipleOf", 1)
        number = int(number // step * step)
        return float(number) if self.chance(0.15) else number

    def _text(self, node: Node) -> str:
        letters = string.ascii_lowercase + "0-./_:"
        text = "".join(self._random.choice(letters) for _ in range(self._random.randrange(1, 9)))
        return str(self.pick([text, text.strip("-./_:0") or "a", "a", "a.b/c", "1", "16Gi", "/a", "https://a:80/b"]))


def jobs(seed: int, count: int, schema: Node, known: Any) -> Iterator[Node]:
    """Jobs with at most four changes, because one error hides others: written ones, and random ones.

    Args:
        schema: of the jobs' `spec`.
        known: the written changes, the module tests/control/api/job_documents.py.
    """
    documents = Documents(seed, schema)
    written = known.changes()
    for _ in range(count):
        document = known.applied(documents.pick(written) for _ in range(documents.pick([0, 0, 1, 1, 2])))
        for _ in range(documents.pick([0, 1, 1, 2])):
            documents.change(document["spec"])
        yield document


def _fields(node: Node, at: Path) -> Iterator[tuple[Path, Node]]:
    for name, inner in node.get("properties", {}).items():
        yield (*at, name), inner
        yield from _fields(inner, (*at, name))
    if isinstance(node.get("items"), dict):
        yield from _fields(node["items"], (*at, "[]"))
