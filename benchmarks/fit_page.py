"""Tables of docs/fit.md, from the raw data in docs/figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from results import FIGURES, ROOT

from omni_operator.cli import devices
from verl_omni.trainer.memory_estimate.estimate import fits

PAGE = ROOT / "docs" / "fit.md"
GIB, MIB = 1 << 30, 1 << 20
Row = dict[str, Any]


def update() -> None:
    """Write the tables into the page."""
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8"), FIGURES), encoding="utf-8")


def with_tables(page: str, figures: Path) -> str:
    """The page with the tables of the data files, each between the comments `<!-- NAME -->` and `<!-- end -->`."""
    for name, render in (("fit_accuracy", accuracy), ("fit_models", models)):
        data = figures / f"{name}.json"
        before, marker, rest = page.partition(f"<!-- {name} -->\n")
        if marker and data.is_file():
            _, end, after = rest.partition("<!-- end -->")
            page = f"{before}{marker}\n{render(json.loads(data.read_text(encoding='utf-8'))['runs'])}\n{end}{after}"
    return page


def accuracy(rows: list[Row]) -> str:
    """Estimate over measurement, by family and variant."""
    cells = [[row["family"], row["variant"], f"{row['measured'] / MIB:.1f}", f"{row['ratio']:.3f}"] for row in rows]
    return _table(["family", "settings", "measured peak, MiB", "estimate / measured"], cells)


def models(rows: list[Row]) -> str:
    """Peaks of the public models, and the devices that hold them."""
    cells = [
        [
            row["model"], f"{row['parameters'] / 1e9:.1f}", str(row["devices"]), _gib(row["generation"]),
            _gib(row["update"]), _gib(row["host"]), f"{row['sample'] / MIB:.1f}", _smallest(row["peak"]),
        ]
        for row in rows
    ]  # fmt: skip
    return _table(
        ["model", "billion parameters", "devices", "generation", "update", "host", "sample, MiB", "fits on"], cells
    )


def _smallest(peak: int) -> str:
    """Names of the devices that hold the peak, from the smallest memory."""
    found = sorted((each for each in devices.Device if fits(peak, devices.memory(each))), key=devices.memory)
    return ", ".join(each.value for each in found) or "none"


def _gib(size: int) -> str:
    return f"{size / GIB:.1f}"


def _table(columns: list[str], rows: list[list[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
