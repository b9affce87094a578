"""PURE: measured values -> the Markdown of a benchmark's section."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

WIDTH = 120
QUIET_LOAD = 1.5  # average load of a machine without other work that matters
Data = dict[str, Any]
Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Section:
    """The text of one benchmark.

    Attributes:
        blocks: paragraphs, lists and tables.
        plots: SVG text by the name of its file.
        missed: a sentence for each missed target.
    """

    blocks: list[str]
    plots: dict[str, str] = field(default_factory=dict)
    missed: list[str] = field(default_factory=list)


def number(value: float) -> str:
    """Three significant digits, without an exponent."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) >= 1e-3 or not value else f"{value:.1g}"


def rounded(value: float) -> str:
    """Two significant digits, for a sentence."""
    return f"{value:.2g}"


def percent(value: float) -> str:
    """A share in whole percent."""
    return f"{value * 100:.0f}%"


def with_range(row: dict[str, Any], name: str) -> str:
    """Median (lowest-highest), as `results.spread` names them."""
    return f"{number(row[name])} ({number(row[f'{name}_lowest'])}-{number(row[f'{name}_highest'])})"


def share_with_range(row: dict[str, Any], name: str) -> str:
    """As `with_range`, in whole percent."""
    return f"{percent(row[name])} ({percent(row[f'{name}_lowest'])}-{percent(row[f'{name}_highest'])})"


def milliseconds(row: dict[str, Any], name: str) -> str:
    """A value in seconds, as milliseconds."""
    return number(row[name] * 1e3)


def selected(rows: Rows, column: str, value: Any) -> Rows:
    """Rows whose column equals a value."""
    return [row for row in rows if row[column] == value]


def points(rows: Rows, x: str, y: str) -> tuple[list[float], list[float], list[float], list[float]]:
    """The columns of a measured `plots.Series`: x, median, lowest, highest."""
    return [row[x] for row in rows], *([row[name] for row in rows] for name in (y, f"{y}_lowest", f"{y}_highest"))  # type: ignore[return-value]


def verdict(met: bool, target: str) -> str:
    """A target as a list item, and whether the data meet it."""
    return f"- {'Target met' if met else '**Target missed**'}: {target}.\n"


def table(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A Markdown table."""
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join(f"| {' | '.join(str(cell) for cell in line)} |" for line in lines)


def wrapped(block: str) -> str:
    """A paragraph or list, wrapped to the repository's line width; a table as it is."""
    if block.startswith("|"):
        return block
    return "\n".join(
        textwrap.fill(
            line, WIDTH, subsequent_indent="  " * line.startswith("- "), break_on_hyphens=False, break_long_words=False
        )
        for line in block.strip().splitlines()
    )
