"""Coverage of a run: the functions of the packages that no test enters, in any process."""

from __future__ import annotations

import ast
import shutil
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from . import entered

PACKAGES = {"verl_omni": "verl_omni", "omni_operator": "operator/omni_operator"}
MODULE = "suite_entered"
REPORT = "untouched.md"


@contextmanager
def counting(root: Path, folder: Path) -> Iterator[None]:
    """Count entered functions in every process of this virtual environment that starts meanwhile.

    Args:
        root: folder of the repository.
        folder: emptied first; it gets a file for each module.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    site = Path(sysconfig.get_path("purelib"))
    copy = site / f"{MODULE}.py"
    start = site / f"{MODULE}.pth"
    shutil.copyfile(entered.__file__, copy)
    start.write_text(f"import {MODULE}; {MODULE}.follow({str(folder)!r}, {list(PACKAGES)!r}, {str(root)!r})\n")
    try:
        yield
    finally:
        start.unlink()
        copy.unlink()


def write_report(root: Path, folder: Path) -> Path:
    """Write which functions no process entered; the path of the page."""
    names: dict[str, list[str]] = {}
    marks: dict[str, bytes | None] = {}
    for package, below in PACKAGES.items():
        for path in sorted((root / below).rglob("*.py")):
            parts = path.relative_to(root / below).with_suffix("").parts
            module = ".".join([package, *(part for part in parts if part != "__init__")])
            found = entered.functions(ast.parse(path.read_text(encoding="utf-8")))
            names[module] = [name for name, _ in found]
            file = folder / module
            marks[module] = file.read_bytes() if file.exists() else None
    page = folder / REPORT
    page.write_text(untouched(names, marks), encoding="utf-8")
    return page


def untouched(names: Mapping[str, Sequence[str]], marks: Mapping[str, bytes | None]) -> str:
    """Modules and functions that no test entered, in Markdown. PURE.

    Args:
        names: functions of each module.
        marks: for each module a byte for each function, not 0 where it was entered; None: the module was not imported.
    """
    lines = []
    all_functions = 0
    reached = 0
    for module, functions in names.items():
        all_functions += len(functions)
        own = marks[module]
        if own is None:
            lines += [f"- `{module}`: not imported"] if functions else []
            continue
        reached += sum(map(bool, own))
        lines += [f"- `{module}`: `{name}`" for name, mark in zip(functions, own, strict=True) if not mark]
    return "\n".join(
        [f"# Code that no test reached: {reached} of {all_functions} functions were entered", "", *lines, ""]
    )
