"""Put the page together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, PackageLoader, select_autoescape
from markupsafe import Markup

from verl_omni.trainer.report import plots
from verl_omni.trainer.report.load import Line, Run, Shown, load
from verl_omni.trainer.run_folder import atomic_write

COLUMNS_SHOWN = 4


@dataclass(frozen=True, slots=True)
class Row:
    """The same prompt and seed over the evaluations."""

    prompt: str
    pictures: list[Shown | None]


def write(folder: Path) -> Path:
    """Write `report.html` into a run folder; the old one stays until the new one is whole.

    Raises:
        ValueError: a file of the folder is not what it should be.
    """
    path = folder / "report.html"
    atomic_write(path, page(load(folder)))
    return path


def page(run: Run) -> str:
    """The report as one HTML document that needs nothing else."""
    environment = Environment(loader=PackageLoader("verl_omni.trainer.report"), autoescape=select_autoescape())
    steps, evaluations = run.steps(), run.evaluations()
    columns = _spread(sorted(run.samples))
    return environment.get_template("report.html.j2").render(
        name=run.name,
        summary=summary(evaluations, len(steps)),
        reward=Markup(plots.reward(steps, evaluations)) if steps or evaluations else None,
        phases=Markup(plots.phases(steps)) if steps else None,
        sync=Markup(plots.single(steps, "timing_s/sync", "seconds")) if steps else None,
        agreement=Markup(plots.single(steps, "rollout_corr/mean_abs_diff", "mean |difference|")) if steps else None,
        versions_match=all(line.get("weights/version") == line["step"] for line in steps),
        columns=columns,
        rows=_rows(run, columns),
        evaluations=[_cells(line) for line in evaluations],
        versions=run.versions,
        settings=run.settings,
    )


def summary(evaluations: list[Line], steps: int) -> str:
    """What happened, in a sentence."""
    if not evaluations:
        return f"{steps} training steps; nothing was evaluated on held-out prompts."
    first, last = evaluations[0], evaluations[-1]
    if len(evaluations) == 1:
        return f"{steps} training steps; held-out reward {first['val/reward/mean']:.3f} at step {first['step']}."
    gain = float(last["val/reward/mean"] or 0) - float(first["val/reward/mean"] or 0)
    error = (float(first["val/reward/stderr"] or 0) ** 2 + float(last["val/reward/stderr"] or 0) ** 2) ** 0.5
    text = (
        f"The held-out reward went from {first['val/reward/mean']:.3f} to {last['val/reward/mean']:.3f} in "
        f"{last['step']:.0f} steps: {gain:+.3f}, {abs(gain) / error if error else 0:.1f} standard errors."
    )
    before, after = first.get("val/correct/mean"), last.get("val/correct/mean")
    if before is not None and after is not None:
        text += f" Right pictures: {before:.1%} before, {after:.1%} after."
    return text


def _cells(line: Line) -> dict[str, str]:
    return {
        name.removeprefix("val/"): f"{value:.4g}" if isinstance(value, float) else str(value)
        for name, value in line.items()
        if name == "step" or name.startswith("val/")
    }


def _spread(steps: list[int]) -> list[int]:
    """The first and the last evaluation, and some between."""
    if len(steps) <= COLUMNS_SHOWN:
        return steps
    return [steps[round(place * (len(steps) - 1) / (COLUMNS_SHOWN - 1))] for place in range(COLUMNS_SHOWN)]


def _rows(run: Run, columns: list[int]) -> list[Row]:
    keys = list(dict.fromkeys((shown.prompt, shown.seed) for step in columns for shown in run.samples[step]))
    found = {step: {(shown.prompt, shown.seed): shown for shown in run.samples[step]} for step in columns}
    return [Row(key[0], [found[step].get(key) for step in columns]) for key in keys]
