"""Importing does nothing, and the control side never loads the training stack."""

import ast
import operator
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HEAVY = ("torch", "ray", "vllm", "vllm_omni", "verl", "transformers", "diffusers", "numpy", "matplotlib")
UNUSED = ("ruamel", "typer", "rich")  # by the operator's process; drl reads files with ruamel.yaml
# Allowed top-level statements with an effect, and the reasons.
ACTING = {
    "verl_omni/__init__.py": "verl finds the rollout vllm_omni after `import verl_omni` (docs/adr/0017)",
    "operator/omni_operator/cli/main.py": "the commands are put together where the program is defined",
    "operator/omni_operator/cli/__main__.py": "runs as a program only",
}


def acts(node: ast.stmt) -> bool:
    """Whether a top-level statement does more than define, import or guard the entry point."""
    match node:
        case ast.Expr(value=ast.Constant()):
            return False
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return False
        case ast.If(test=ast.Compare(left=ast.Name(id="__name__"))):
            return False
        case _:
            definitions = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
            return not isinstance(node, (*definitions, ast.Assign, ast.AnnAssign))


def test_importing_a_module_does_nothing(modules: list[Any]) -> None:
    acting = {
        f"{module.path}:{node.lineno}: {ast.unparse(node)[:80]}"
        for module in modules
        if module.path not in ACTING
        for node in module.tree.body
        if acts(node)
    }
    assert acting == set()


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("'words'", False),
        ("import json", False),
        ("LIMIT = 3", False),
        ("if __name__ == '__main__': main()", False),
        ("register()", True),
        ("module.attribute.call()", True),
        ("with open('file') as file: pass", True),
        ("for name in names: apply(name)", True),
        ("if platform: patch()", True),
    ],
)
def test_what_counts_as_acting(statement: str, expected: bool) -> None:
    assert acts(ast.parse(statement).body[0]) is expected


def test_the_folder_operator_is_no_package(root: Path) -> None:
    assert [path.name for path in (root / "operator").glob("*.py")] == []
    assert not (root / "tests" / "operator").exists()
    assert operator.itemgetter(1)([0, 7]) == 7


def test_the_root_does_not_hide_the_standard_library(root: Path) -> None:
    """An interpreter that starts in the root, as for `python -m`, still imports the standard `operator`."""
    code = "import operator, collections; print(operator.itemgetter(0)([5]))"
    child = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert child.stdout.strip() == "5"


def test_the_schema_of_settings_needs_no_library_but_yaml(root: Path) -> None:
    blocked = (*HEAVY, "omegaconf", "hydra", "pydantic", "kopf", "kubernetes")
    code = (
        f"import sys; sys.modules |= dict.fromkeys({blocked!r})\n"
        "import importlib, pkgutil, verl_omni.settings_schema as schema\n"
        "for each in pkgutil.iter_modules(schema.__path__): importlib.import_module(f'{schema.__name__}.{each.name}')\n"
        "print(len(schema.layout.common_layout().names) > 150, len(schema.reference_settings.rules()) > 100)"
    )
    environment = {**os.environ, "PYTHONPATH": str(root)}
    child = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert (child.returncode, child.stdout.strip()) == (0, "True True"), child.stderr[-2000:]


@pytest.mark.slow
def test_the_operators_process_leaves_out_the_packages_of_drl(root: Path) -> None:
    """Up to its message that there are no credentials, when everything is imported."""
    code = (
        "import sys; from omni_operator.main import main; status = main()\n"
        f"print(status, sorted(set({UNUSED!r}) & set(sys.modules)))"
    )
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(root / "operator"), "HOME": "/nonexistent"}
    child = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert "no credentials" in child.stderr
    assert child.stdout.strip() == "2 []"


def test_names_come_from_the_input_alone(modules: list[Any]) -> None:
    """A random name would create a second object on a retry."""
    chance = {"uuid", "random", "secrets"}
    random_names = [
        f"{module.path}:{node.lineno}"
        for module in modules
        if module.name.startswith(("omni_operator.api", "omni_operator.plan", "omni_operator.status"))
        for node in ast.walk(module.tree)
        if (isinstance(node, ast.Import) and chance & {alias.name.split(".")[0] for alias in node.names})
        or (isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in chance)
        or (isinstance(node, ast.Attribute) and node.attr == "uuid4")
    ]
    assert random_names == []
