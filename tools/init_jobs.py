"""The jobs that `drl init` begins with: copies of tested examples, without their first comment."""

from pathlib import Path

from verl_omni.pipelines.description import EXAMPLE_FILE
from verl_omni.pipelines.registry import FOLDERS

FOLDER = Path("verl_omni/pipelines")


def text(example: str) -> str:
    """The job of an example."""
    _comment, begin, body = Path(f"examples/{example}.yaml").read_text(encoding="utf-8").partition("apiVersion:")
    return begin + body


def generated() -> dict[Path, str]:
    """The copies."""
    return {
        FOLDER / name / EXAMPLE_FILE: text(family.example.job) for name, family in FOLDERS.items() if family.example
    }
