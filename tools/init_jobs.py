"""The jobs that `drl init` begins with: copies of tested examples, without their first comment.

    python -m tools.init_jobs [--check]

`--check` writes nothing and fails where a copy does not match its example.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tools.generated_file import write_or_check
from verl_omni.pipelines.description import EXAMPLE_FILE
from verl_omni.pipelines.registry import FOLDERS

FOLDER = Path("verl_omni/pipelines")


def text(example: str, _: Path) -> str:
    """The job of an example."""
    _comment, begin, rest = Path(f"examples/{example}.yaml").read_text(encoding="utf-8").partition("apiVersion:")
    return begin + rest


def main(arguments: Sequence[str]) -> int:
    """Write the copies, or check them; the exit code."""
    stale = "is not the example"
    return max(
        write_or_check(
            arguments, Path("verl_omni/pipelines") / name / EXAMPLE_FILE, partial(text, family.example.job), stale
        )
        for name, family in FOLDERS.items()
        if family.example
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
