"""YAML parser that reads values as kubectl does, and reports every text that it cannot read with its position.

ruamel.yaml reads YAML 1.2, in which 0400 is 400 and `no` a text, and makes dates of texts such as 2026-11-29. kubectl
reads YAML 1.1 as JSON, in which these are 256, false and a text. ruamel.yaml leaves it to Python to reject a value such
as `!!int abc`, and reads collections that contain themselves, are nested until the stack is full, or grow without limit
when each alias is replaced by its value.
"""

import re
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import TaggedScalar
from ruamel.yaml.composer import Composer, ComposerError
from ruamel.yaml.constructor import ConstructorError, RoundTripConstructor
from ruamel.yaml.nodes import MappingNode, ScalarNode
from ruamel.yaml.scalarstring import DoubleQuotedScalarString
from typing_extensions import override

DEEPEST = 64  # levels; pod templates, the deepest part of a job, have about 15
# Characters of a document whose aliases are replaced by their values. Each value has one more than its text. The API
# server stores objects of 1.5 MiB.
LARGEST_SIZE = 2_000_000
LARGEST_BITS = 1023  # size of an integer: as in the largest float; Python cannot print more than 4,300 digits
TAG = "tag:yaml.org,2002:"  # beginning of the tags that YAML defines, written `!!`
TEXTS = ("timestamp", "value")  # kinds that are texts; the second is the kind of `=`
KINDS = (*TEXTS, "str", "null", "bool", "int", "float", "map", "seq", "merge", "!")
# Texts without quotes that are booleans, besides true and false.
WORDS = {"y": True, "yes": True, "on": True, "n": False, "no": False, "off": False}
BOOLEANS = {form(word): value for word, value in WORDS.items() for form in (str.lower, str.capitalize, str.upper)}
OCTAL = re.compile(r"[-+]?0[0-7_]+")
# What ruamel.yaml raises for a scalar that does not have the form of its tag, as !!bool abc.
INVALID = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, AssertionError)


def make_yaml() -> YAML:
    """A parser that keeps comments, order and line numbers; its errors are `YAMLError`."""
    yaml = YAML(typ="rt")
    yaml.preserve_quotes = True
    yaml.width = 4096
    yaml.Composer = _Composer
    yaml.Constructor = _Constructor
    return yaml


class _Composer(Composer):
    """Refuses values that are nested too deeply, aliases inside their own value, and aliases that expand too far."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._open: list[Any] = []
        self._sizes: dict[Any, int] = {}  # size of each composed node, with aliases expanded

    @override
    def compose_node(self, parent: Any, index: Any) -> Any:
        mark = self.parser.peek_event().start_mark
        if len(self._open) > DEEPEST:
            raise ComposerError(problem=f"nested more than {DEEPEST} levels deep", problem_mark=mark)
        self._open.append(parent)
        try:
            node = super().compose_node(parent, index)
            if any(node is outer for outer in self._open):
                raise ComposerError(problem="an alias stands for a value that contains the alias", problem_mark=mark)
        finally:
            self._open.pop()
        if self._size(node) > LARGEST_SIZE:
            text = f"with a value in place of each alias, the document has more than {LARGEST_SIZE:,} characters"
            raise ComposerError(problem=text, problem_mark=mark)
        return node

    def _size(self, node: Any) -> int:
        if node not in self._sizes:
            if isinstance(node, ScalarNode):
                size = len(node.value)
            elif isinstance(node, MappingNode):
                size = sum(self._sizes[key] + self._sizes[value] for key, value in node.value)
            else:
                size = sum(self._sizes[item] for item in node.value)
            self._sizes[node] = 1 + size
        return self._sizes[node]


class _Constructor(RoundTripConstructor):
    """Reads scalars as kubectl does; refuses those that Python cannot represent, and tags without a value in JSON."""

    @override
    def construct_object(self, node: Any, deep: bool = False) -> Any:
        kind = str(node.tag).removeprefix(TAG)
        tag = str(node.tag).replace(TAG, "!!")
        if kind not in KINDS:
            text = f"the tag {tag} has no meaning here; write the value without it"
            raise ConstructorError(problem=text, problem_mark=node.start_mark)
        if isinstance(node, ScalarNode) and kind in TEXTS:
            return node.value
        if isinstance(node, ScalarNode) and kind == "int" and OCTAL.fullmatch(node.value):
            return int(node.value.replace("_", ""), 8)
        try:
            constructed = super().construct_object(node, deep)
        except INVALID as error:
            text = f"{str(node.value)[:40]!r} is not a valid value of {tag}"
            raise ConstructorError(problem=text, problem_mark=node.start_mark) from error
        if isinstance(constructed, int) and constructed.bit_length() > LARGEST_BITS:
            raise ConstructorError(problem="a number with too many digits", problem_mark=node.start_mark)
        if isinstance(constructed, TaggedScalar):  # `!!str no`
            return DoubleQuotedScalarString(constructed.value)
        is_plain = isinstance(node, ScalarNode) and node.style is None
        return BOOLEANS.get(node.value, constructed) if is_plain else constructed
