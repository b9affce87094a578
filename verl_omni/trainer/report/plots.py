"""Lines of metrics -> plots, as SVG text that stands inside a page.

Text and axes have the colour of the page's text, so that a plot reads on light and on dark paper.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from verl_omni.trainer.report.load import Line
from verl_omni.trainer.report.words import PHASES

TRAINING, HELD_OUT = "#4c8fd0", "#e5683c"
PHASE_COLORS = {"generate": "#4c8fd0", "update": "#e0a030", "sync": "#49a86c", "other": "#8a8f98"}
BARS_AT_MOST = 150  # more would be thinner than a pixel
INK = "#010203"  # stands for the page's text colour until the SVG is written
STYLE = {
    "axes.edgecolor": INK, "axes.labelcolor": INK, "text.color": INK, "xtick.color": INK, "ytick.color": INK,
    "axes.spines.right": False, "axes.spines.top": False, "legend.frameon": False, "svg.fonttype": "none",
    "font.size": 10.0, "axes.grid": True, "grid.alpha": 0.15, "grid.color": "#808080",
}  # fmt: skip


def curve(name: str, steps: Sequence[Line], evaluations: Sequence[Line], metric: str, *, wide: bool = False) -> str:
    """A metric of training steps, and of evaluations under `val/`; with its spread and standard error if known."""
    with mpl.rc_context(STYLE):
        figure, axes = _figure((9, 3.6) if wide else (4.6, 2.4))
        _spread(axes, steps, metric)
        _held_out(axes, evaluations, f"val/{metric.removeprefix('reward/') if metric != 'reward/mean' else metric}")
        axes.set(xlabel="step", ylabel="reward" if wide else "")
        if wide and axes.get_legend_handles_labels()[0]:
            axes.legend(loc="best")
        return _svg(figure, name)


def phases(name: str, steps: Sequence[Line]) -> str:
    """Seconds of each step, by what they went into."""
    x = _column(steps, "step")
    parts = {phase: _column(steps, f"timing_s/{phase}", 0.0) for phase in PHASES}
    known = [sum(values) for values in zip(*parts.values(), strict=True)]
    whole = _column(steps, "timing_s/step", 0.0)
    parts["other"] = [max(0.0, total - part) for total, part in zip(whole, known, strict=True)]
    with mpl.rc_context(STYLE):
        figure, axes = _figure((9, 3.0))
        colors = [PHASE_COLORS[phase] for phase in parts]
        if len(steps) > BARS_AT_MOST:
            axes.stackplot(x, *parts.values(), labels=list(parts), colors=colors, linewidth=0)
        else:
            bottom = [0.0] * len(steps)
            for (phase, heights), color in zip(parts.items(), colors, strict=True):
                axes.bar(x, heights, bottom=bottom, color=color, width=0.85, label=phase)
                bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
        axes.set(xlabel="step", ylabel="seconds", ylim=(0, None))
        figure.legend(*axes.get_legend_handles_labels(), loc="outside upper left", ncols=len(parts))
        return _svg(figure, name)


def single(name: str, steps: Sequence[Line], metrics: Mapping[str, str], *, logarithmic: bool = False) -> str:
    """Metrics over the steps, each with its word; the scale is logarithmic only if every value is positive."""
    with mpl.rc_context(STYLE):
        figure, axes = _figure((4.6, 2.4))
        columns = {word: _column(steps, metric) for metric, word in metrics.items() if _known(steps, metric)}
        for (word, values), color in zip(columns.items(), PHASE_COLORS.values(), strict=False):
            axes.plot(_column(steps, "step"), values, color=color, label=word, **_mark(values))
        if len(columns) > 1:
            axes.legend(fontsize=9)
        found = [value for values in columns.values() for value in values if not math.isnan(value)]
        if logarithmic and min(found) > 0:
            axes.set_yscale("log")
        elif min(found) >= 0:
            axes.set_ylim(0, max(found) * 1.08 or 1)
        axes.set(xlabel="step")
        return _svg(figure, name)


def extras(lines: Sequence[Line]) -> list[str]:
    """What a scorer measured beside the reward: `reward/<name>/mean`, in order of appearance.

    One that is the reward under another name, in every line, is left out.
    """
    names: dict[str, None] = {}
    for line in lines:
        for key in line:
            if match := re.fullmatch(r"(?:reward|val)/(.+)/mean", key):
                names[match[1]] = None
    return [f"reward/{name}/mean" for name in names if name != "reward" and not _is_reward(lines, name)]


def _is_reward(lines: Sequence[Line], name: str) -> bool:
    """Whether what a scorer measured is the reward itself, but for rounding."""
    pairs = [
        (line[own], line.get(reward))
        for line in lines
        for own, reward in ((f"reward/{name}/mean", "reward/mean"), (f"val/{name}/mean", "val/reward/mean"))
        if own in line
    ]
    return all(a == b or (a is not None and b is not None and math.isclose(a, b, rel_tol=1e-5)) for a, b in pairs)


def _spread(axes: Any, steps: Sequence[Line], metric: str) -> None:
    if not _known(steps, metric):
        return
    x, mean = _column(steps, "step"), _column(steps, metric)
    axes.plot(x, mean, color=TRAINING, label="training, with the sampler's noise", **_mark(mean))
    spread = f"{metric.removesuffix('/mean')}/std"
    if metric.endswith("/mean") and _known(steps, spread):
        std = _column(steps, spread)
        low, high = ([m + sign * s for m, s in zip(mean, std, strict=True)] for sign in (-1, 1))
        axes.fill_between(x, low, high, color=TRAINING, alpha=0.16, linewidth=0)


def _held_out(axes: Any, evaluations: Sequence[Line], metric: str) -> None:
    known = [line for line in evaluations if line.get(metric) is not None]
    if not known:
        return
    error = f"{metric.removesuffix('/mean')}/stderr"
    bars = _column(known, error, 0.0) if _known(known, error) else None
    axes.errorbar(
        _column(known, "step"), _column(known, metric), yerr=bars, color=HELD_OUT, marker="o", markersize=5,
        linewidth=1, linestyle="--", capsize=4, label="held out, without noise",
    )  # fmt: skip


def _figure(size: tuple[float, float]) -> tuple[Figure, Any]:
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.add_subplot()
    axes.set_axisbelow(True)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure, axes


def _mark(values: Sequence[float]) -> dict[str, Any]:
    """A line through one point is invisible: few points are marked."""
    return {"marker": "o", "markersize": 4} if len(values) < 3 else {}


def _known(lines: Sequence[Line], name: str) -> bool:
    return any(line.get(name) is not None for line in lines)


def _column(lines: Sequence[Line], name: str, missing: float = float("nan")) -> list[float]:
    return [missing if (value := line.get(name)) is None else value for line in lines]


def _svg(figure: Figure, name: str) -> str:
    """SVG for inside a page: the same run gives the same text, and no identifier of two plots is the same."""
    file = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": name}):
        figure.savefig(file, format="svg", metadata={"Date": None}, transparent=True)
    text = re.sub(r"^.*?(?=<svg)|<metadata>.*?</metadata>", "", file.getvalue(), flags=re.DOTALL)
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", text)
    text = re.sub(r"'DejaVu Sans'[^;\"]*", "system-ui, sans-serif", text)
    return text.replace(INK, "currentColor")
