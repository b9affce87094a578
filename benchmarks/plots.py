"""Plots of benchmarks as SVG: reproducible bytes, readable in light and dark mode."""

import io
from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

COLORS = ("#4c8fd0", "#e5683c", "#49a86c", "#e0a030")
INK = "#808890"  # readable in light and dark mode
STYLE = {
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "figures",
    "font.size": 10.0,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "grid.color": INK,
}


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a plot.

    Attributes:
        low, high: range of the turns; empty for a computed line such as a target, which is dashed.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()


def plot(series: Sequence[Series], x: str, y: str, *, log_x: bool = False, log_y: bool = False) -> str:
    """Lines with labelled axes; a linear y axis starts at zero."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6.4, 3.2), layout="constrained")
        axes = figure.add_subplot()
        for color, curve in zip(COLORS, series, strict=False):
            if curve.low:
                below = [middle - low for middle, low in zip(curve.y, curve.low, strict=True)]
                above = [high - middle for middle, high in zip(curve.y, curve.high, strict=True)]
                axes.errorbar(
                    curve.x,
                    curve.y,
                    (below, above),
                    color=color,
                    marker="o",
                    markersize=4,
                    capsize=3,
                    label=curve.label,
                )
            else:
                axes.plot(curve.x, curve.y, color=color, linestyle="--", label=curve.label)
        places = sorted({tick for curve in series for tick in curve.x})
        axes.set(xlabel=x, ylabel=y, xscale="log" if log_x else "linear", yscale="log" if log_y else "linear")
        axes.set_xticks(places, [f"{tick:g}" for tick in places])
        axes.xaxis.set_minor_locator(NullLocator())
        if not log_y:
            axes.set_ylim(bottom=0)
        axes.legend(loc="best")
        file = io.StringIO()
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"
