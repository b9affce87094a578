"""Command line of the report: `python -m verl_omni.trainer.report RUN_DIR` writes report.html into the run folder.

Of several run folders, `--out FILE` gets the comparison.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from verl_omni.trainer.report import comparison, write


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the report and print its path. Returns 0, or 1 if a file is malformed, or cannot be read or written."""
    parser = argparse.ArgumentParser(prog="python -m verl_omni.trainer.report", description=__doc__)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN_DIR", help="a run folder; several are compared")
    parser.add_argument("--out", type=Path, default=Path("comparison.html"), help="file of a comparison")
    chosen = parser.parse_args(arguments)
    folders: list[Path] = chosen.runs
    for folder in folders:
        if not folder.is_dir():
            parser.error(f"{folder} is not a folder: give a run folder, such as runs/NAME")
    try:
        print(write(folders[0]) if len(folders) == 1 else comparison.write(folders, chosen.out))
    except ValueError as error:
        print(f"{', '.join(map(str, folders))}: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        target = folders[0] / "report.html" if len(folders) == 1 else chosen.out
        print(f"{target} was not written: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
