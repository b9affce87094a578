"""Rules of the house that a machine can hold."""

from __future__ import annotations

import ast
import operator
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 400
ALLOWED: dict[str, str] = {}  # path -> reason
SOURCES = [*ROOT.glob("verl_omni/**/*.py"), *ROOT.glob("operator/**/*.py")]


def test_modules_are_short() -> None:
    sizes = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in SOURCES}
    assert sorted(path for path, lines in sizes.items() if lines > LIMIT and path not in ALLOWED) == []


def test_the_folder_named_operator_is_no_package() -> None:
    assert not (ROOT / "operator" / "__init__.py").exists()
    assert operator.itemgetter(1)([1, 2]) == 2


def test_the_command_imports_nothing_of_the_training_stack() -> None:
    code = (
        "import sys, omni_operator.cli.main; "
        "print([m for m in ('torch', 'ray', 'vllm', 'verl', 'transformers', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_locks_name_no_address() -> None:
    for path in (ROOT / "requirements").glob("*.txt"):
        assert "://" not in path.read_text(), path


def test_every_patch_refuses_versions_it_was_not_tested_on() -> None:
    patches = [path for path in ROOT.glob("verl_omni/compat/*.py") if path.name not in ("__init__.py", "versions.py")]
    assert patches
    for path in patches:
        calls = [node.func.id for node in ast.walk(ast.parse(path.read_text())) if _is_call(node)]  # type: ignore[attr-defined]
        assert "require" in calls, path


def _is_call(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
