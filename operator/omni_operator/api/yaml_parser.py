"""YAML parser that reports every text that it cannot read as an error with its position.

ruamel.yaml leaves it to Python to reject a value such as the date 2001-99-99, and reads collections that contain
themselves, or are nested until the stack is full.
"""

from __future__ import annotations

from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer, ComposerError
from ruamel.yaml.constructor import ConstructorError, RoundTripConstructor
from typing_extensions import override

DEEPEST = 64  # levels; pod templates, the deepest part of a job, have about 15
LARGEST_BITS = 1023  # of an integer: as much as a float can have; Python cannot print one of more than 4,300 digits
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
    """Refuses what is nested too deeply, and aliases of what they are in."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._open: list[Any] = []

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
        return node


class _Constructor(RoundTripConstructor):
    """Refuses scalars that Python cannot represent."""

    @override
    def construct_object(self, node: Any, deep: bool = False) -> Any:
        try:
            made = super().construct_object(node, deep)
        except INVALID as error:
            tag = str(node.tag).replace("tag:yaml.org,2002:", "!!")
            text = f"{str(node.value)[:40]!r} is not a valid value of {tag}"
            raise ConstructorError(problem=text, problem_mark=node.start_mark) from error
        if isinstance(made, int) and made.bit_length() > LARGEST_BITS:
            raise ConstructorError(problem="a number with too many digits", problem_mark=node.start_mark)
        return made
