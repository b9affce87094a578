"""Put the page together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from verl_omni.trainer.report import plots, words
from verl_omni.trainer.report.load import Line, Run, Shown, load
from verl_omni.trainer.run_folder import atomic_write

COLUMNS_SHOWN = 4
SMALL = 128  # a picture with fewer pixels is enlarged with its pixels visible
ACTOR = {
    "actor/grad_norm": "Norm of the gradient",
    "actor/clip_fraction": "Share of clipped ratios",
    "actor/kl": "KL to the base model",
    "actor/distance_to_old": "Distance to the old policy",
    "actor/margin": "Margin of the better picture of a pair",
    "actor/accuracy": "Share of pairs in the right order",
    "actor/lr": "Learning rate",
}
DIFFERENCE = {"rollout_corr/mean_abs_diff": "mean", "rollout_corr/max_abs_diff": "largest"}


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot and what it shows, in words."""

    label: str
    svg: Markup


@dataclass(frozen=True, slots=True)
class Row:
    """The same prompt and seed over the evaluations; None where a picture is missing."""

    prompt: str
    seed: int
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
    environment = Environment(
        loader=PackageLoader("verl_omni.trainer.report"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {"number": words.number, "fixed": words.fixed}
    steps, evaluations = run.steps(), run.evaluations()
    columns = spread_out(sorted(run.samples), COLUMNS_SHOWN)
    return environment.get_template("report.html.j2").render(
        run=run,
        summary=words.summary(run),
        ending=words.ending(run),
        notes=words.notes(run),
        facts=words.facts(run),
        reward=_plot("Reward over the steps", plots.curve("reward", steps, evaluations, "reward/mean", wide=True))
        if steps or evaluations
        else None,
        columns=columns,
        rows=rows(run, columns),
        small=SMALL,
        extras=_extras(run),
        evaluations=evaluations,
        measured=_measured(run),
        phases=_plot("Seconds of each step, by phase", plots.phases("phases", steps)) if steps else None,
        totals=words.phase_totals(run),
        weights=words.weights(steps),
        sync=_steps_plot("Seconds of each weight update", steps, {"timing_s/sync": "seconds"}),
        agreement=words.agreement(steps),
        difference=_steps_plot("Difference of log-probabilities", steps, DIFFERENCE, logarithmic=True),
        actor=[
            plot
            for metric, label in ACTOR.items()
            if words.constant(steps, metric) is None and (plot := _steps_plot(label, steps, {metric: label}))
        ],
        constants=[
            f"{label}: {words.number(value)} in every step."
            for metric, label in ACTOR.items()
            if (value := words.constant(steps, metric)) is not None
        ],
    )  # fmt: skip


def spread_out(steps: list[int], most: int) -> list[int]:
    """At most `most` of the steps, spread evenly; the first and the last are among them."""
    if len(steps) <= most:
        return steps
    return [steps[round(place * (len(steps) - 1) / (most - 1))] for place in range(most)]


def rows(run: Run, columns: list[int]) -> list[Row]:
    """Pictures of the columns, by prompt and seed, in the order in which they were kept."""
    found = {step: {(shown.prompt, shown.seed): shown for shown in run.samples[step]} for step in columns}
    keys = dict.fromkeys(key for step in columns for key in found[step])
    return [Row(*key, [found[step].get(key) for step in columns]) for key in keys]


def _measured(run: Run) -> list[str]:
    """Columns of the table of evaluations: the reward first, then what else the scorer measured."""
    names = ["val/n", "val/reward/mean", "val/reward/stderr"]
    names += [name.replace("reward/", "val/", 1) for name in plots.extras(run.lines)]
    return [name for name in names if any(name in line for line in run.evaluations())]


def _extras(run: Run) -> list[Plot]:
    steps, evaluations = run.steps(), run.evaluations()
    return [
        _plot(name.split("/", 1)[1].removesuffix("/mean"), plots.curve(_word(name), steps, evaluations, name))
        for name in plots.extras(run.lines)
    ]


def _steps_plot(label: str, steps: list[Line], metrics: Mapping[str, str], *, logarithmic: bool = False) -> Plot | None:
    """A plot of metrics of training steps; None where none was recorded."""
    if not any(line.get(metric) is not None for line in steps for metric in metrics):
        return None
    return _plot(label, plots.single(_word(label), steps, metrics, logarithmic=logarithmic))


def _plot(label: str, svg: str) -> Plot:
    """Mark an SVG of ours as safe: matplotlib escapes every text in it."""
    return Plot(label, Markup(svg))


def _word(text: str) -> str:
    """A name as an identifier of the page."""
    return "".join(character if character.isascii() and character.isalnum() else "-" for character in text)
