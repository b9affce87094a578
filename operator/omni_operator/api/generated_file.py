"""Command line of the programs that write a committed file from the operator's code, or check it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path


def write_or_check(
    arguments: Sequence[str] | None,
    *,
    program: str,
    description: str,
    default: Path,
    render: Callable[[], str],
    stale: str,
    name: str | None = None,
) -> int:
    """Write the file, or with `--check` write nothing and report a stale one. Returns the exit code.

    Args:
        default: the file, unless `--out` is given; with `name`, its folder.
        render: its whole text.
        stale: what is wrong with a file that has another text, e.g. "does not match the models".
        name: of the file in the folder that `--out` gives.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {program}", description=description)
    parser.add_argument("--out", type=Path, default=default, help="the file" if name is None else "folder of the file")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the file is stale")
    options = parser.parse_args(arguments)
    path: Path = options.out if name is None else options.out / name
    wanted = render()
    if not options.check:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(wanted, encoding="utf-8")
        return 0
    if path.is_file() and path.read_text(encoding="utf-8") == wanted:
        return 0
    sys.stderr.write(f"{path} {stale}: run `make crds` and commit it\n")
    return 1
