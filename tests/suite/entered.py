"""Which functions of the packages were entered, counted in every process of a virtual environment.

`coverage` copies this file into the environment, where a `.pth` file calls `follow` at the start of every interpreter.
From then on the modules of the packages are compiled with one assignment more at the beginning of each function: it
sets the function's byte in a file that all processes map. So it costs almost no time, and what a process entered is
known although it was killed. It imports the standard library only: every interpreter of the environment runs it.
"""

from __future__ import annotations

import ast
import marshal
import mmap
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType
from typing import Any

Function = ast.FunctionDef | ast.AsyncFunctionDef
NAME = "_entered_"  # the variable of each module
COMPILED = ".code"  # end of the names of compiled modules, next to the bytes of their functions


def functions(tree: ast.AST, outer: str = "") -> list[tuple[str, Function]]:
    """Qualified names and nodes of functions and methods that have something to do, in the order of the source. PURE.

    Functions inside functions are left out: torch.compile refuses the assignment in those that it traces.
    """
    found: list[tuple[str, Function]] = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Function):
            found += [(outer + node.name, node)] if has_work(node) else []
        else:
            found += functions(node, f"{outer}{node.name}." if isinstance(node, ast.ClassDef) else outer)
    return found


def has_work(function: Function) -> bool:
    """Whether the body is more than a docstring, `...`, `pass` or `raise NotImplementedError`. PURE."""
    return not all(
        isinstance(node, ast.Pass)
        or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        or (isinstance(node, ast.Raise) and "NotImplementedError" in ast.dump(node))
        for node in function.body
    )


def counted(tree: ast.Module, file: str) -> ast.Module:
    """The module with an assignment at the beginning of each of its functions; changes `tree`. PURE.

    Args:
        file: path of the bytes of its functions.
    """
    found = functions(tree)
    for number, (_, function) in enumerate(found):
        insert(function.body, f"{NAME}[{number}] = 1", function.lineno)
    if found:
        start = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module == "__future__"]
        place = 1 + tree.body.index(start[-1]) if start else 1 if ast.get_docstring(tree) else 0
        line = f"import {__name__}; {NAME} = {__name__}.opened({file!r}, {len(found)})"
        for node in reversed(ast.parse(line).body):
            tree.body.insert(place, at_line(node, 1))
    return tree


def insert(body: list[ast.stmt], line: str, number: int) -> None:
    """Insert a statement at the beginning of a function's body, after the docstring."""
    is_docstring = isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
    body.insert(1 if is_docstring else 0, at_line(ast.parse(line).body[0], number))


def at_line(statement: ast.stmt, number: int) -> ast.stmt:
    """The statement as if it stood in this line; changes it."""
    for node in ast.walk(statement):
        if isinstance(node, ast.stmt | ast.expr):
            node.lineno = node.end_lineno = number
    return statement


class Entered(mmap.mmap):
    """A byte for each function of a module, shared by all processes. It pickles: Ray pickles classes of actors."""

    path: str

    def __reduce__(self) -> tuple[Any, ...]:
        return opened, (self.path, len(self))


def opened(path: str, count: int) -> Entered:
    """The bytes of a module's functions."""
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        os.ftruncate(file, count)
        found = Entered(file, count)
    finally:
        os.close(file)
    found.path = path
    return found


class Loader(SourceFileLoader):
    """Compiles a module's source with the assignments, once for all processes."""

    def __init__(self, fullname: str, path: str, into: str) -> None:
        super().__init__(fullname, path)
        self._file = os.path.join(into, fullname)

    def get_code(self, fullname: str) -> CodeType:
        kept = f"{self._file}{COMPILED}"
        try:
            with open(kept, "rb") as file:
                found: CodeType = marshal.load(file)
        except FileNotFoundError:
            source = self.get_data(self.get_filename(fullname))
            found = compile(counted(ast.parse(source), self._file), self.path, "exec", dont_inherit=True)
            part = f"{kept}.{os.getpid()}"
            with open(part, "wb") as file:
                marshal.dump(found, file)
            os.replace(part, kept)
        return found


class Finder(MetaPathFinder):
    """Finds the modules of some packages whose source is below one of the roots."""

    def __init__(self, into: str, packages: Sequence[str], root: str) -> None:
        self._into = into
        self._packages = packages
        self._root = root

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] not in self._packages:
            return None
        spec = PathFinder.find_spec(fullname, path)
        if spec is None or not isinstance(spec.loader, SourceFileLoader) or not spec.loader.path.startswith(self._root):
            return spec
        spec.loader = Loader(fullname, spec.loader.path, self._into)
        return spec


def follow(into: str, packages: Sequence[str], root: str) -> None:
    """Count the functions of modules that are imported from now on.

    Args:
        into: folder of a file for each module.
        packages: names of packages.
        root: folder that their source is below; the same packages from elsewhere are not counted.
    """
    sys.meta_path.insert(0, Finder(into, packages, root))
