"""Reasons that the code of the operator and of the trainer gives."""

import ast
from collections.abc import Iterator
from pathlib import Path

from omni_operator.status import condition_value

# Calls that give a reason, and its position among their arguments.
CALLS = {
    "ConditionValue": 1,
    "Suspending": 0,
    "InProgress": 1,
    "AttemptFailed": 0,
    "Event": 1,
}


def given_reasons(root: Path) -> set[str]:
    """Constant reasons of conditions, failures, events and refusals, from the calls that make them."""
    reasons: set[str] = set()
    for path in (root / "operator" / "omni_operator").rglob("*.py"):
        for call in _calls(path):
            name = call.func.id if isinstance(call.func, ast.Name) else ""
            arguments = call.args[CALLS[name] :][:1] if name in CALLS else []
            arguments += [word.value for word in call.keywords if (name, word.arg) == ("Refusal", "kind")]
            reasons.update(filter(None, map(_text, arguments)))
    return reasons


def operator_strings(root: Path) -> set[str]:
    """All string constants of the operator, without the table of reasons."""
    package = root / "operator" / "omni_operator"
    paths = [path for path in package.rglob("*.py") if path.parent.name != "reasons"]
    nodes = (node for path in paths for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    return {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def warnings_of_the_trainer(root: Path) -> set[str]:
    """Reasons of the warnings that the trainer writes into its run folder, from the calls `event("warning", …)`."""
    reasons = set()
    for path in (root / "verl_omni" / "trainer").rglob("*.py"):
        constants = _constants(path)
        for call in _calls(path):
            if not (call.args and isinstance(call.args[0], ast.Constant) and call.args[0].value == "warning"):
                continue
            for word in call.keywords:
                if word.arg == "reason":
                    reasons.add(_reason(word.value, constants, path))
    return reasons


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
            value = getattr(condition_value, name, "")
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
