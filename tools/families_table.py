"""The table of model families in docs/reference/model-families.md, from the descriptions of the families."""

import importlib
import inspect
import textwrap
from collections.abc import Iterator
from pathlib import Path

from tools.generated_file import with_part
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
        architectures = ", ".join(f"`{architecture}`" for architecture in family.architectures)
        tiny = ", ".join(f"`{model}`" for model in family.tiny_models)
        yield f"| `{name}` | {family.models} | {architectures} | {family.generates} | {tiny} |"


def _paragraphs() -> Iterator[str]:
    for name in FOLDERS:
        module = importlib.import_module(f"{pipelines.__name__}.{name}")
        _, _, more = (inspect.getdoc(module) or "").partition("\n\n")
        if more:
            text = f"**`{name}`.** {' '.join(more.split())}"
            yield "\n" + textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def generated() -> dict[Path, str]:
    """The page with a new table."""
    return with_part(PAGE, BEGIN, END, render())
