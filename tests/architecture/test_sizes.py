"""Limits of modules, functions and folders; an exception is an entry here, with its reason."""

import ast
from collections import Counter
from pathlib import PurePath
from typing import Any

MODULE_LIMIT = 600
FUNCTION_LIMIT = 80
FOLDER_LIMIT = 20  # modules
LONG_MODULES: dict[str, str] = {}
LONG_FUNCTIONS: dict[str, str] = {}
FULL_FOLDERS = {"verl_omni/reward_loop/rewards": "a module per scorer, each found by its name"}


def functions(modules: list[Any]) -> dict[str, int]:
    """Lines of every function, by `path:name`."""
    return {
        f"{module.path}:{node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for module in modules
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def too_long(sizes: dict[str, int], limit: int, allowed: dict[str, str]) -> list[str]:
    return sorted(f"{name}: {lines} lines" for name, lines in sizes.items() if lines > limit and name not in allowed)


def test_modules_stay_short(modules: list[Any]) -> None:
    assert too_long({module.path: module.lines for module in modules}, MODULE_LIMIT, LONG_MODULES) == []


def test_functions_stay_short(modules: list[Any]) -> None:
    assert too_long(functions(modules), FUNCTION_LIMIT, LONG_FUNCTIONS) == []


def test_folders_stay_small(modules: list[Any]) -> None:
    paths = [PurePath(module.path) for module in modules]
    folders = Counter(path.parent.as_posix() for path in paths if path.name != "__init__.py")
    assert max(folders.values()) > 10
    full = {folder: count for folder, count in folders.items() if count > FOLDER_LIMIT}
    assert {folder: count for folder, count in full.items() if folder not in FULL_FOLDERS} == {}
    assert {folder for folder in FULL_FOLDERS if folders[folder] < FOLDER_LIMIT} == set(), "exceptions that are none"


def test_every_exception_is_still_one(modules: list[Any]) -> None:
    sizes = {module.path: module.lines for module in modules}
    assert [name for name in LONG_MODULES if sizes.get(name, 0) <= MODULE_LIMIT] == []
    assert [name for name in LONG_FUNCTIONS if functions(modules).get(name, 0) <= FUNCTION_LIMIT] == []
