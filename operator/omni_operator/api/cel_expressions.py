"""PURE: CEL for Python expressions over the fields of a model, so that a rule of a job is written once.

The subset: `self.a_field`, constants, lists of them, `is None`, comparisons, `in`, `and`, `or`, `not`, `+`, `*`, `%`,
`x if y else z` and `startswith`. An expression must not read a field that is None without a test before it, which also
fails on the API server.
"""

from __future__ import annotations

import ast
from functools import cache
from types import CodeType
from typing import Any

from pydantic.alias_generators import to_camel

_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.In: "in",
}
_OPERATIONS: dict[type[ast.operator], str] = {ast.Add: "+", ast.Mult: "*", ast.Mod: "%"}
_METHODS = {"startswith": "startsWith"}


@cache
def to_cel(expression: str) -> str:
    """The CEL expression with the value of a Python expression.

    Raises:
        ValueError: it is not in the subset.
    """
    return _cel(ast.parse(expression, mode="eval").body)


def holds(expression: str, model: Any) -> bool:
    """Whether an expression is true for a model."""
    return bool(eval(_compiled(expression), {"__builtins__": {}}, {"self": model}))


@cache
def _compiled(expression: str) -> CodeType:
    return compile(expression, expression, "eval")


def _cel(node: ast.expr) -> str:
    match node:
        case ast.BoolOp(op=op, values=values):
            sign = " && " if isinstance(op, ast.And) else " || "
            return sign.join(_inner(each) for each in values)
        case ast.IfExp(test=test, body=body, orelse=other):
            return f"({_cel(test)} ? {_cel(body)} : {_cel(other)})"
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return f"!{_inner(operand)}"
        case ast.Compare(left=left, ops=[ast.Is()], comparators=[ast.Constant(value=None)]):
            return f"!has({_cel(left)})"
        case ast.Compare(left=left, ops=[ast.IsNot()], comparators=[ast.Constant(value=None)]):
            return f"has({_cel(left)})"
        case ast.Compare(left=left, ops=[ast.NotIn()], comparators=[right]):
            return f"!({_cel(left)} in {_cel(right)})"
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARISONS:
            return f"{_cel(left)} {_COMPARISONS[type(op)]} {_cel(right)}"
        case ast.BinOp(left=left, op=operation, right=right) if type(operation) in _OPERATIONS:
            return f"{_inner(left)} {_OPERATIONS[type(operation)]} {_inner(right)}"
        case ast.Call(func=ast.Attribute(value=value, attr=method), args=[argument]) if method in _METHODS:
            return f"{_cel(value)}.{_METHODS[method]}({_cel(argument)})"
        case ast.List(elts=elements):
            return f"[{', '.join(map(_cel, elements))}]"
        case ast.Attribute(value=value, attr=name):
            return f"{_cel(value)}.{to_camel(name)}"
        case ast.Name(id="self"):
            return "self"
        case ast.Constant(value=bool(value)):
            return str(value).lower()
        case ast.Constant(value=int(value) | float(value) | str(value)):
            return repr(value)
        case _:
            raise ValueError(f"not an expression of a rule: {ast.unparse(node)}")


def _inner(node: ast.expr) -> str:
    """An operand; in parentheses if it has an operator itself."""
    has_operator = isinstance(node, ast.BoolOp | ast.BinOp)
    return f"({_cel(node)})" if has_operator else _cel(node)
