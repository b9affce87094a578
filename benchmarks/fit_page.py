"""Tables of docs/fit.md, from the raw data in docs/figures."""

from __future__ import annotations

from typing import Any

import formatting
from page_tables import Tables
from results import ROOT

from omni_operator.cli.machine import devices
from verl_omni.trainer.memory_estimate.estimate import fits

PAGE = ROOT / "docs" / "fit.md"
GIB = 1 << 30
MIB = 1 << 20
Row = dict[str, Any]


def accuracy(rows: list[Row]) -> str:
    """Estimate over measurement, by family and variant."""
    cells = [[row["family"], row["variant"], f"{row['measured'] / MIB:.1f}", f"{row['ratio']:.3f}"] for row in rows]
    return formatting.table(["family", "settings", "measured peak, MiB", "estimate / measured"], cells)


def models(rows: list[Row]) -> str:
    """Peaks of the public models, and the devices that hold them."""
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
        ["model", "billion parameters", "devices", "generation", "update", "host", "sample, MiB", "fits on"], cells
    )


def _smallest(peak: int) -> str:
    """Names of the devices that hold the peak, from the smallest memory."""
    found = sorted((each for each in devices.Device if fits(peak, devices.memory(each))), key=devices.memory)
    return ", ".join(each.value for each in found) or "none"


def _gib(size: int) -> str:
    return f"{size / GIB:.1f}"


TABLES: Tables = {"fit_accuracy": accuracy, "fit_models": models}
