"""PURE: lines of metrics -> plotly figures. The page's style sheet colours text and axes for light and dark mode."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from verl_omni.trainer.report.run_data import Line
from verl_omni.trainer.report.statements import phases, recorded

TRAINING = "#4c8fd0"
HELD_OUT = "#e5683c"
BAND = "rgba(76, 143, 208, 0.18)"
COLORS = (TRAINING, HELD_OUT, "#49a86c", "#e0a030")
RUN_COLORS = (*COLORS, "#9b6dd0", "#4fb3bf", "#b5651d", "#8a8f98")
PHASE_COLORS = {"generate": "#4c8fd0", "wait": "#4c8fd0", "update": "#e0a030", "sync": "#49a86c", "other": "#8a8f98"}
GRID = "rgba(128, 128, 128, 0.22)"
DASH = {"symbol": "line-ew-open", "size": 14}  # a line that has one point
# pixels
TALL = 360
LOW = 250
MOST_BARS = 150  # more would be thinner than a pixel on a phone
MOST_MARKERS = 40  # more would hide the line and its error bars
FEW_STEPS = 8  # so few steps get a tick each, for there are no steps between them


def reward_curve(steps: Sequence[Line], evaluations: Sequence[Line], metric: str, *, tall: bool = False) -> go.Figure:
    """A `<name>/mean` of training steps, with a band of its standard deviation, and of evaluations, with error bars."""
    figure = _figure(TALL if tall else LOW, [*steps, *evaluations])
    name = metric.removesuffix("/mean")
    subject = name.removeprefix("reward/")
    x = _column(steps, "step")
    mean = _column(steps, metric)
    if recorded(steps, f"{name}/std") and recorded(steps, metric):
        spread = _column(steps, f"{name}/std")
        edge = {"mode": "lines", "line": {"width": 0}, "showlegend": False, "hoverinfo": "skip"}
        figure.add_scatter(x=x, y=mean - spread, **edge)
        figure.add_scatter(x=x, y=mean + spread, fill="tonexty", fillcolor=BAND, **edge)
    if recorded(steps, metric):
        figure.add_scatter(
            x=x,
            y=mean,
            name=f"training {subject}",
            mode=_mode(mean),
            line={"color": TRAINING},
            hovertemplate="%{y:.4g}",
        )
    _add_evaluations(figure, evaluations, subject, HELD_OUT, name=f"held-out {subject}")
    return figure


def phase_bars(steps: Sequence[Line]) -> go.Figure:
    """Stacked seconds of each step by phase; areas instead of bars if there are many steps."""
    figure = _figure(TALL, steps)
    parts = {
        phase: np.nan_to_num(_column(steps, f"timing_s/{phase}"))
        for phase in phases(steps)
        if recorded(steps, f"timing_s/{phase}")
    }
    if recorded(steps, "timing_s/step"):
        step_seconds = np.nan_to_num(_column(steps, "timing_s/step"))
        parts["other"] = np.maximum(0.0, step_seconds - sum(parts.values(), np.zeros(len(steps))))
    for phase, seconds in parts.items():
        same: dict[str, Any] = {"x": _column(steps, "step"), "y": seconds, "name": phase, "hovertemplate": "%{y:.3g} s"}
        if len(steps) > MOST_BARS:
            line = {"width": 0, "color": PHASE_COLORS[phase]}
            figure.add_scatter(**same, stackgroup="phases", mode="lines", line=line, fillcolor=PHASE_COLORS[phase])
        else:
            figure.add_bar(**same, marker={"color": PHASE_COLORS[phase]})
    figure.update_layout(barmode="stack", bargap=0.15, yaxis={"rangemode": "tozero", "ticksuffix": " s"})
    return figure


def lines_plot(lines: Sequence[Line], metrics: Mapping[str, str], *, logarithmic: bool = False) -> go.Figure:
    """Metrics over the steps, by label; the scale is logarithmic only if every value is positive."""
    figure = _figure(LOW, lines)
    columns = {label: _column(lines, metric) for metric, label in metrics.items() if recorded(lines, metric)}
    for (label, values), color in zip(columns.items(), COLORS, strict=False):
        _add_line(figure, lines, values, label, color)
    lowest = min(float(np.nanmin(values)) for values in columns.values())
    if logarithmic and lowest > 0:
        figure.update_yaxes(type="log", exponentformat="power", dtick=1)
    elif lowest >= 0:
        figure.update_yaxes(rangemode="tozero")
    figure.update_layout(showlegend=len(columns) > 1)
    return figure


def rewards_of_runs(runs: Mapping[str, tuple[Sequence[Line], Sequence[Line]]]) -> go.Figure:
    """Rewards of runs: training steps as a thin line, evaluations as points with error bars."""
    figure = _figure(TALL, [line for parts in runs.values() for lines in parts for line in lines])
    for (name, (steps, evaluations)), color in zip(runs.items(), RUN_COLORS, strict=False):
        if trained := recorded(steps, "reward/mean"):
            figure.add_scatter(
                x=_column(steps, "step"),
                y=_column(steps, "reward/mean"),
                name=name,
                mode="lines" if len(trained) > 1 else "markers",
                marker={**DASH, "line": {"width": 2, "color": color}},
                line={"color": color, "width": 1.2},
                legendgroup=name,
                hovertemplate="%{y:.4g}",
            )
        _add_evaluations(figure, evaluations, "reward", color, name=f"{name}, held-out", legendgroup=name)
    return figure


def metric_of_runs(runs: Mapping[str, Sequence[Line]], metric: str) -> go.Figure:
    """A metric of several runs over the steps."""
    figure = _figure(LOW, [line for lines in runs.values() for line in lines])
    for (name, lines), color in zip(runs.items(), RUN_COLORS, strict=False):
        _add_line(figure, lines, _column(lines, metric), name, color)
    return figure


def _add_line(figure: go.Figure, lines: Sequence[Line], values: np.ndarray[Any, Any], name: str, color: str) -> None:
    """Add a value of each line over the steps, without those that are NaN."""
    known = ~np.isnan(values)
    figure.add_scatter(
        x=_column(lines, "step")[known],
        y=values[known],
        name=name,
        mode=_mode(values[known]),
        line={"color": color},
        hovertemplate="%{y:.4g}",
    )


def _add_evaluations(figure: go.Figure, evaluations: Sequence[Line], subject: str, color: str, **labels: str) -> None:
    """Add `val/<subject>/mean` of evaluations, with error bars if there are standard errors.

    Args:
        labels: `name`, and `legendgroup` if it belongs to a group.
    """
    metric = f"val/{subject}"
    known = recorded(evaluations, f"{metric}/mean")
    if not known:
        return
    errors = _column(known, f"{metric}/stderr")
    figure.add_scatter(
        x=_column(known, "step"),
        y=_column(known, f"{metric}/mean"),
        mode="lines+markers",
        error_y=None if np.isnan(errors).all() else {"type": "data", "array": errors, "thickness": 1.5},
        line={"color": color, "dash": "dash", "width": 1.5},
        marker={"size": 8 if len(known) <= MOST_MARKERS else 3},
        hovertemplate="%{y:.4g}",
        **labels,
    )


def scorer_metrics(lines: Sequence[Line]) -> list[str]:
    """Metrics of the scorers besides the reward, as `reward/<name>/mean`, in order of appearance.

    A metric that equals the reward in every line is left out.
    """
    names: dict[str, None] = {}
    for line in lines:
        for key in line:
            if match := re.fullmatch(r"(?:reward|val)/(.+)/mean", key):
                names[match[1]] = None
    return [f"reward/{name}/mean" for name in names if name != "reward" and not _equals_reward(lines, name)]


def _equals_reward(lines: Sequence[Line], name: str) -> bool:
    """Whether a metric equals the reward in every line, except for rounding."""
    pairs = [
        (line[metric], line.get(reward))
        for line in lines
        for metric, reward in ((f"reward/{name}/mean", "reward/mean"), (f"val/{name}/mean", "val/reward/mean"))
        if metric in line
    ]
    return all(a == b or (a is not None and b is not None and math.isclose(a, b, rel_tol=1e-5)) for a, b in pairs)


def _figure(height: int, lines: Sequence[Line]) -> go.Figure:
    steps = [line["step"] or 0 for line in lines]
    axis = {"gridcolor": GRID, "zerolinecolor": GRID, "automargin": True}
    layout: dict[str, Any] = {
        "template": go.layout.Template(),
        "height": height,
        "margin": {"l": 8, "r": 8, "t": 30, "b": 8},  # the buttons are above the plot
        "paper_bgcolor": "rgba(0, 0, 0, 0)",
        "plot_bgcolor": "rgba(0, 0, 0, 0)",
        "font": {"family": "system-ui, sans-serif", "size": 12},
        "hovermode": "x unified",
        "legend": {
            "orientation": "h",
            "traceorder": "normal",
            "x": 0,
            "xanchor": "left",
            "yref": "container",
            "y": 0,
            "yanchor": "bottom",
        },
        "modebar": {"bgcolor": "rgba(0, 0, 0, 0)"},
        "xaxis": {**axis, "title": {"text": "step", "standoff": 6}, "unifiedhovertitle": {"text": "step %{x}"}},
        "yaxis": {**axis, "exponentformat": "power"},
    }
    if steps and max(steps) - min(steps) <= FEW_STEPS:
        layout["xaxis"]["dtick"] = 1
    return go.Figure(layout=layout)


def _mode(values: np.ndarray[Any, Any]) -> str:
    """A line through one point is invisible, so few points get markers."""
    return "lines+markers" if len(values) < 10 else "lines"


def _column(lines: Sequence[Line], name: str) -> np.ndarray[Any, Any]:
    """A metric as an array; NaN where it is missing or was not finite."""
    return np.array([math.nan if (value := line.get(name)) is None else value for line in lines], dtype=np.float64)
