"""The table of model families in docs/reference/model-families.md, from the descriptions of the families.

    python -m tools.families_table [--check]

`--check` writes nothing and fails where the table is stale.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from tools.generated_file import write_or_check
from verl_omni import pipelines
from verl_omni.pipelines.registry import FOLDERS

PAGE = Path("docs/reference/model-families.md")
BEGIN = "<!-- families: written by `make crds` -->"
END = "<!-- end of families -->"


def render() -> str:
    """The table, and below it what a family's docstring says after its first paragraph."""
    return "\n".join([*_table(), *_paragraphs()])


def _table() -> Iterator[str]:
    yield "| family | models | `_class_name` in `model_index.json` | generates | tiny models |"
    yield "| --- | --- | --- | --- | --- |"
    for name, family in FOLDERS.items():
        architectures = ", ".join(f"`{each}`" for each in family.architectures)
        tiny = ", ".join(f"`{each}`" for each in family.tiny_models)
        yield f"| `{name}` | {family.models} | {architectures} | {family.generates} | {tiny} |"


def _paragraphs() -> Iterator[str]:
    for name in FOLDERS:
        module = importlib.import_module(f"{pipelines.__name__}.{name}")
        _, _, more = (inspect.getdoc(module) or "").partition("\n\n")
        if more:
            text = f"**`{name}`.** {' '.join(more.split())}"
            yield "\n" + textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def _page(path: Path) -> str:
    """The page with a new table; the rest stays."""
    head, _, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    return f"{head}{BEGIN}\n\n{render()}\n\n{END}{rest.partition(END)[2]}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or check the table. Returns the exit code."""
    return write_or_check(arguments, PAGE, _page, stale="does not show the model families")


if __name__ == "__main__":
    sys.exit(main())
