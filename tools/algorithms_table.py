"""The table of algorithms in docs/reference/algorithms.md, from the descriptions of the algorithms."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path

from tools.generated_file import with_part
from verl_omni.workers.algorithms import registered

PAGE = Path("docs/reference/algorithms.md")
BEGIN = "<!-- algorithms: written by `make crds` -->"
END = "<!-- end of algorithms -->"


def render() -> str:
    """The table, and below it what the modules of algorithms say after the first paragraph of their docstrings."""
    return "\n".join([*_table(), *_paragraphs()])


def _table() -> Iterator[str]:
    yield "| algorithm | in a job | `loss_mode` | paper |"
    yield "| --- | --- | --- | --- |"
    for name, (algorithm, meaning) in registered.job_names().items():
        more = f" with `{meaning.more}`" if meaning.more else ""
        paper = f"[{meaning.paper}](https://arxiv.org/abs/{meaning.paper})"
        yield f"| {meaning.title} | `algorithm.name: {name}`{more} | `{algorithm}` | {paper} |"


def _paragraphs() -> Iterator[str]:
    for algorithm in registered.ALGORITHMS:
        module = importlib.import_module(f"{registered.__name__}.{algorithm}")
        _, _, more = (inspect.getdoc(module) or "").partition("\n\n")
        if more:
            yield f"\n### `{algorithm}`\n\n{more}"


def generated() -> dict[Path, str]:
    """The page with a new table."""
    return with_part(PAGE, BEGIN, END, render())
