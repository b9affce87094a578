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

FOLDER = Path("operator/omni_operator/cli/init_jobs")
EXAMPLES = {"sd35": "sd35-ocr-1gpu", "qwen-image": "qwen-image-ocr-grpo", "wan22-5b": "wan22-5b-dance-grpo"}


def text(example: str, _: Path) -> str:
    """The job of an example."""
    _comment, begin, rest = Path(f"examples/{example}.yaml").read_text(encoding="utf-8").partition("apiVersion:")
    return begin + rest


def main(arguments: Sequence[str]) -> int:
    """Write the copies, or check them; the exit code."""
    stale = "is not the example"
    return max(
        write_or_check(arguments, FOLDER / f"{name}.yaml", partial(text, example), stale)
        for name, example in EXAMPLES.items()
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
