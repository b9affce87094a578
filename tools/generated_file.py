"""Command line of the programs that write a committed file from the code, or check it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path


def write_or_check(arguments: Sequence[str] | None, default: Path, render: Callable[[Path], str], stale: str) -> int:
    """Write the file, or with `--check` write nothing and report a stale one. Returns the exit code.

    Args:
        default: the file, unless `--out` is given.
        render: its whole text; the argument is the file, which may have parts that are kept.
        stale: what is wrong with a file that has another text, e.g. "does not list the settings".
    """
    parser = argparse.ArgumentParser(description="Write a generated file.")
    parser.add_argument("--out", type=Path, default=default, help="the file")
    parser.add_argument("--check", action="store_true", help="write nothing; fail where the file is stale")
    options = parser.parse_args(arguments)
    path: Path = options.out
    if not options.check:
        path.write_text(render(path), encoding="utf-8")
        return 0
    if path.is_file() and path.read_text(encoding="utf-8") == render(path):
        return 0
    sys.stderr.write(f"{path} {stale}: run `make crds` and commit it\n")
    return 1
