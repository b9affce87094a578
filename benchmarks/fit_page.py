"""Tables of the estimates of `drl fit`, from the raw data in docs/figures."""

from pathlib import Path
from typing import Any

import formatting
from page_tables import Tables
from results import ROOT

from omni_operator.cli.machine.fit import Device, memory_of
from verl_omni.trainer.memory_estimate.estimate import fits

GIB = 1 << 30
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
    """Peaks of the public models on each number of devices, and the smallest device that holds them."""
    by_model: dict[str, list[Row]] = {}
    for row in rows:
        by_model.setdefault(row["model"], []).append(row)
    cells = [
        [
            model,
            f"{rows_of_model[0]['parameters'] / 1e9:.1f}",
            *("/".join(_gib(row[peak]) for row in rows_of_model) for peak in ("generation", "update", "host")),
            "/".join(_smallest(row["peak"]) for row in rows_of_model),
        ]
        for model, rows_of_model in by_model.items()
    ]
    return formatting.table(["model", "billion parameters", "generation", "update", "host", "smallest device"], cells)


def _smallest(peak: int) -> str:
    """The device with the least memory that holds the peak."""
    holding = sorted((device for device in Device if fits(peak, memory_of(device))), key=memory_of)
    return holding[0].value if holding else "none"


def _gib(size: int) -> str:
    return f"{size / GIB:.1f}"


ACCURACY: tuple[Path, Tables] = (ROOT / "docs" / "guides" / "fit.md", {"fit_accuracy": accuracy})
MODELS: tuple[Path, Tables] = (ROOT / "docs" / "reference" / "model-families.md", {"fit_models": models})
