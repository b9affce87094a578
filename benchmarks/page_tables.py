"""Tables of a documentation page, each between two comments, from the raw data in docs/figures."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from results import FIGURES

Run = dict[str, Any]
# The Markdown of a table, from the runs of the data file of that name.
Tables = Mapping[str, Callable[[list[Run]], str]]


def update(page: Path, tables: Tables, out: Path) -> None:
    """Write the tables into the page, if the measurement was written to `FIGURES` and not elsewhere."""
    if out.resolve().parent == FIGURES:
        page.write_text(with_tables(page.read_text(encoding="utf-8"), tables, FIGURES), encoding="utf-8")


def with_tables(page: str, tables: Tables, figures: Path) -> str:
    """The page with the tables of the data files, each between the comments `<!-- NAME -->` and `<!-- end -->`."""
    for name, render in tables.items():
        data = figures / f"{name}.json"
        before, marker, following = page.partition(f"<!-- {name} -->\n")
        if marker and data.is_file():
            _, end, after = following.partition("<!-- end -->")
            page = f"{before}{marker}\n{render(json.loads(data.read_text(encoding='utf-8'))['runs'])}\n\n{end}{after}"
    return page
