"""A patch of upstream refuses untested versions and states when it can be removed."""

import ast
from importlib.metadata import version
from typing import Any

import pytest

from verl_omni.compat.versions import PatchOutdated, require


def patches(modules: list[Any]) -> list[Any]:
    helpers = {"verl_omni.compat", "verl_omni.compat.versions"}
    return [module for module in modules if module.name.startswith("verl_omni.compat") and module.name not in helpers]


def applying(module: Any) -> ast.FunctionDef:
    functions = [node for node in module.tree.body if isinstance(node, ast.FunctionDef) and node.name == "apply"]
    assert len(functions) == 1, f"{module.path} has no function `apply`"
    return functions[0]


def test_the_guard_comes_before_anything_else(modules: list[Any]) -> None:
    assert patches(modules)
    for module in patches(modules):
        first = next(node for node in applying(module).body if not isinstance(node, ast.Expr) or not is_words(node))
        assert isinstance(first, ast.Expr), module.path
        assert isinstance(first.value, ast.Call), module.path
        assert ast.unparse(first.value.func) == "require", module.path


def is_words(node: ast.Expr) -> bool:
    return isinstance(node.value, ast.Constant)


def test_a_patch_states_the_fault_and_when_it_can_be_removed(modules: list[Any]) -> None:
    for module in patches(modules):
        words = ast.get_docstring(module.tree) or ""
        assert "Fault:" in words, module.path
        assert "Remove when:" in words, module.path


def test_an_untested_version_is_refused() -> None:
    require("pydantic", frozenset({version("pydantic")}), "nothing")
    with pytest.raises(PatchOutdated, match=r"a patch: tested on pydantic \['0\.1'\], found "):
        require("pydantic", frozenset({"0.1"}), "a patch")
