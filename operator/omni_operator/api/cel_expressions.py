"""PURE: CEL for Python expressions over the fields of a model, so that a rule of a job is written once.

The subset: `self.a_field`, constants, lists of them, `is None`, comparisons, `in`, `and`, `or`, `not`, `+`, `*`, `%`,
`x if y else z`, `startswith`, `len(x)`, `contains(text, part)`, `matches(text, pattern)`, and `any` or `all` of
`condition for name in a_list`. An expression must not read a field that is None without a test before it, which also
fails on the API server. A list that is absent on the API server is empty in a model, so the test for it is only CEL's.
"""

import ast
import re
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
_LOOPS = {"any": "exists", "all": "all"}
ITEM = "item"  # of the list of a rule about each item
_FUNCTIONS: dict[str, Any] = {
    "any": any,
    "all": all,
    "len": len,
    "contains": lambda text, part: part in text,
    "matches": lambda text, pattern: re.search(pattern, text) is not None,
}


@cache
def to_cel(expression: str) -> str:
    """The CEL expression with the value of a Python expression.

    Raises:
        ValueError: it is not in the subset.
    """
    tree = ast.parse(expression, mode="eval").body
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    known = {"self", ITEM, *_FUNCTIONS, *(name.id for name in names if isinstance(name.ctx, ast.Store))}
    if unknown := [name.id for name in names if name.id not in known]:
        raise ValueError(f"not an expression of a rule: {unknown[0]} in {expression}")
    return _cel(tree)


def holds(expression: str, model: Any, item: Any = None) -> bool:
    """Whether an expression is true for a model, or for an item of one of its lists."""
    return bool(eval(_compiled(expression), {"__builtins__": {}, **_FUNCTIONS, "self": model, ITEM: item}))


@cache
def _compiled(expression: str) -> CodeType:
    return compile(expression, expression, "eval")


def _cel(node: ast.expr) -> str:
    match node:
        case ast.BoolOp(op=op, values=values):
            sign = " && " if isinstance(op, ast.And) else " || "
            return sign.join(_inner(value) for value in values)
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
        case ast.Call(
            func=ast.Name(id=loop),
            args=[
                ast.GeneratorExp(
                    elt=condition, generators=[ast.comprehension(target=ast.Name(id=name), iter=items, ifs=[])]
                )
            ],
        ) if loop in _LOOPS:
            return f"{_cel(items)}.{_LOOPS[loop]}({name}, {_cel(condition)})"
        case ast.Call(func=ast.Name(id="len"), args=[items]):
            return f"size({_cel(items)})"
        case ast.Call(func=ast.Name(id="contains"), args=[text, part]):
            return f"{_cel(text)}.contains({_cel(part)})"
        case ast.Call(func=ast.Name(id="matches"), args=[text, ast.Constant(value=str(pattern))]):
            return f"{_cel(text)}.matches(r'{pattern}')"
        case ast.List(elts=elements):
            return f"[{', '.join(map(_cel, elements))}]"
        case ast.Attribute(value=value, attr=name):
            return f"{_cel(value)}.{to_camel(name)}"
        case ast.Name(id=name) if name not in _FUNCTIONS:
            return name
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
