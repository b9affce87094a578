"""Reasons of conditions and of the trainer's warnings, read from the code that writes them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from omni_operator.status.decisions import situation
from omni_operator.status.report.events import _TROUBLES

# Position of the reason in the calls that make one, and the status of the condition where the call says it.
MAKERS = {
    "true_because": (0, "True"),
    "false_because": (0, "False"),
    "unknown_because": (0, "Unknown"),
    "ConditionValue": (1, None),
    "Suspending": (0, "Unknown"),
    "InProgress": (1, "False"),
}


def reasons_of_conditions(root: Path) -> dict[str, set[str]]:
    """Reasons in the calls that make conditions and refusals, with the statuses that the calls name."""
    package = root / "operator" / "omni_operator"
    found: dict[str, set[str]] = {reason: {"False"} for reason in _TROUBLES}
    for path in [*(package / "status").rglob("*.py"), package / "reconcile" / "refused_requests.py"]:
        for call in _calls(path):
            name = call.func.id if isinstance(call.func, ast.Name) else ""
            at, status = MAKERS.get(name, (None, None))
            given = [(call.args[at], status)] if at is not None and len(call.args) > at else []
            given += [(word.value, "False") for word in call.keywords if (name, word.arg) == ("Refusal", "kind")]
            for argument, value in given:
                if reason := _text(argument):
                    found.setdefault(reason, set()).update({value} if value else set())
    return found


def warnings_of_the_trainer(root: Path) -> set[str]:
    """Reasons of the warnings that the trainer writes into its run folder, from the calls `event("warning", …)`."""
    found = set()
    for path in (root / "verl_omni" / "trainer").rglob("*.py"):
        constants = _constants(path)
        for call in _calls(path):
            if not (call.args and isinstance(call.args[0], ast.Constant) and call.args[0].value == "warning"):
                continue
            for word in call.keywords:
                if word.arg == "reason":
                    found.add(_reason(word.value, constants, path))
    return found


def _reason(node: ast.expr, constants: dict[str, str], path: Path) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.Name(id=name) if name in constants:
            return constants[name]
        case ast.Attribute(value=ast.Name(id=module), attr=name):
            (file,) = path.parents[1].rglob(f"{module}.py")
            return _constants(file)[name]
        case _:
            raise AssertionError(f"{path}:{node.lineno}: the reason of a warning is not a constant")


def _text(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.Name(id=name):
            value = getattr(situation, name, "")
            return value if isinstance(value, str) else ""
        case _:
            return ""


def _constants(path: Path) -> dict[str, str]:
    return {
        target.id: node.value.value
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _calls(path: Path) -> Iterator[ast.Call]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            yield node
