"""Tables of docs/guides/fit.md, from the raw data in docs/figures."""

from __future__ import annotations

from typing import Any

import formatting
from page_tables import Tables
from results import ROOT

from omni_operator.cli.machine import devices
from verl_omni.trainer.memory_estimate.estimate import fits

PAGE = ROOT / "docs" / "guides" / "fit.md"
GIB = 1 << 30
MIB = 1 << 20
Row = dict[str, Any]


def accuracy(rows: list[Row]) -> str:
    """Lowest and highest estimate over measurement, by family and precision."""
    ratios: dict[tuple[str, bool], list[float]] = {}
    for row in rows:
        ratios.setdefault((row["family"], "bfloat16" in row["variant"]), []).append(row["ratio"])
    families = dict.fromkeys(row["family"] for row in rows)
    cells = [[family, *(_span(ratios.get((family, low), [])) for low in (False, True))] for family in families]
    return formatting.table(["family", "float32", "bfloat16"], cells)


def _span(ratios: list[float]) -> str:
    """The lowest and the highest; one number where they are equal."""
    return " to ".join(dict.fromkeys(f"{ratio:.2f}" for ratio in (min(ratios), max(ratios)))) if ratios else "none"


def models(rows: list[Row]) -> str:
    """Peaks of the public models, and the smallest device that holds them."""
    cells = [
        [
            row["model"],
            f"{row['parameters'] / 1e9:.1f}",
            str(row["devices"]),
            _gib(row["generation"]),
            _gib(row["update"]),
            _gib(row["host"]),
            f"{row['sample'] / MIB:.1f}",
            _smallest(row["peak"]),
        ]
        for row in rows
    ]
    return formatting.table(
        ["model", "billion parameters", "devices", "generation", "update", "host", "sample, MiB", "smallest device"],
        cells,
    )


def _smallest(peak: int) -> str:
    """The device with the least memory that holds the peak."""
    found = sorted((each for each in devices.Device if fits(peak, devices.memory(each))), key=devices.memory)
    return found[0].value if found else "none"


def _gib(size: int) -> str:
    return f"{size / GIB:.1f}"


TABLES: Tables = {"fit_accuracy": accuracy, "fit_models": models}
