"""Lines of metrics -> pictures, as SVG text."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from verl_omni.trainer.report.load import Line

PHASES = ("generate", "update", "sync")
COLORS = {"generate": "#4c78a8", "update": "#f58518", "sync": "#54a24b"}


def reward(steps: Sequence[Line], evaluations: Sequence[Line]) -> str:
    """Training reward with its spread, and the held-out reward with its standard error."""
    figure, axes = _figure()
    if steps:
        x, mean, std = (_column(steps, name) for name in ("step", "reward/mean", "reward/std"))
        axes.plot(x, mean, color=COLORS["generate"], label="training, with noise")
        low, high = ([m + sign * s for m, s in zip(mean, std, strict=True)] for sign in (-1, 1))
        axes.fill_between(x, low, high, color=COLORS["generate"], alpha=0.15, linewidth=0)
    if evaluations:
        x, mean, err = (_column(evaluations, name) for name in ("step", "val/reward/mean", "val/reward/stderr"))
        axes.errorbar(x, mean, yerr=err, color="#e45756", marker="o", capsize=4, label="held out, without noise")
    axes.set(xlabel="step", ylabel="reward")
    axes.legend(frameon=False)
    return _svg(figure)


def phases(steps: Sequence[Line]) -> str:
    """Seconds of each step, by what they went into."""
    figure, axes = _figure()
    bottom = [0.0] * len(steps)
    x = _column(steps, "step")
    for phase in PHASES:
        height = _column(steps, f"timing_s/{phase}")
        axes.bar(x, height, bottom=bottom, color=COLORS[phase], width=1.0, label=phase)
        bottom = [b + h for b, h in zip(bottom, height, strict=True)]
    axes.set(xlabel="step", ylabel="seconds")
    axes.legend(frameon=False, ncols=3)
    return _svg(figure)


def single(steps: Sequence[Line], name: str, label: str) -> str:
    """One metric over the steps."""
    figure, axes = _figure(height=2.2)
    axes.plot(_column(steps, "step"), _column(steps, name), color=COLORS["generate"])
    axes.set(xlabel="step", ylabel=label)
    return _svg(figure)


def _figure(height: float = 3.2) -> tuple[Figure, Any]:
    figure = Figure(figsize=(8, height), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _column(lines: Sequence[Line], name: str) -> list[float]:
    return [float(value) if (value := line.get(name)) is not None else float("nan") for line in lines]


def _svg(figure: Figure) -> str:
    """SVG without its XML header, and without a date, so that the same run gives the same page."""
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None}, transparent=True)
    return re.sub(r"^.*?(?=<svg)", "", file.getvalue(), flags=re.DOTALL)
