"""The HTML page of a run: statements, images and plots, with plotly.js inlined once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import plotly.graph_objects as go
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from verl_omni.reward_loop.part_settings import held_out_scorers
from verl_omni.trainer.report import plots, statements
from verl_omni.trainer.report.changed_settings import changed_settings
from verl_omni.trainer.report.description import describe, describe_evaluations
from verl_omni.trainer.report.run_data import Image, Line, Run, load
from verl_omni.trainer.run.run_folder import atomic_write

SMALL = 128  # pixels; narrower images are enlarged without smoothing
MOST_ROWS = 12  # a longer table is folded
STRIP = 2  # an image this many times as wide as high is a strip of video frames
ACTOR_LABELS = {
    "actor/loss": "Loss",
    "actor/grad_norm": "Gradient norm",
    "actor/clip_fraction": "Clip fraction",
    "actor/clip_fraction_at_start": "Ratios clipped in the first optimizer step",
    "actor/ratio_max": "Largest probability ratio",
    "actor/kl": "KL to the base model",
    "actor/kl_to_old": "KL to the policy before the update",
    "actor/kl_to_old_max": "Largest KL of a step to the policy before the update",
    "actor/distance_to_old": "Distance to the old policy",
    "actor/distance_to_base": "Distance to the base model",
    "actor/ratio_distance": "Distance of the likelihood ratio from 1",
    "actor/margin": "Margin of the preferred sample",
    "actor/accuracy": "Preference accuracy",
    "actor/preferred_fraction": "Fraction of pairs with a preference",
    "actor/lr": "Learning rate",
    "actor/optimizer_steps": "Optimizer steps",
    "actor/skipped_steps": "Updates skipped, because the gradient was not finite",
}
DIVERSITY_LABELS = {
    "diversity/reward_std_within_prompt": "Standard deviation of the rewards within a prompt",
    "diversity/images": "Pixel standard deviation across held-out images",
    "reward/constant_prompts": "Prompts whose samples all had the same reward",
}
ROLLOUT_LABELS = {
    "rollout/idle_share": "Share of a step in which the engines were idle",
    "rollout/samples_lost": "Samples generated again, because their replica was lost",
    "rollout/requests_aborted": "Requests aborted and repeated",
}
# Metrics that are 0 where the policy is compared with itself.
TO_OLD = ("actor/distance_to_old", "actor/ratio_distance", "actor/kl_to_old")
IMAGE_LABELS = {
    "images/luminance": "Luminance",
    "images/dark": "Share of dark pixels",
    "images/clipped": "Share of color values at 0 or 255",
    "images/saturation": "Saturation",
    "images/edges": "Edges: mean difference of neighboring pixels",
    "images/jpeg_bits": "Bits per pixel as a JPEG",
    "images/diversity": "Diversity of the images of a prompt",
}
DIFFERENCES = {"rollout_corr/mean_abs_diff": "mean", "rollout_corr/max_abs_diff": "largest"}


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot: identifier on the page, caption, and plotly's JSON."""

    identifier: str
    label: str
    figure: Markup


@dataclass(frozen=True, slots=True)
class ImageRow:
    """Images of one prompt and seed, one for each evaluation shown; None where an image is missing."""

    prompt: str
    seed: int
    images: list[Image | None]


def write(folder: Path) -> Path:
    """Write `report.html` into a run folder. The previous report stays until the new one is complete.

    Raises:
        ValueError: a file of the folder is malformed.
    """
    path = folder / "report.html"
    atomic_write(path, render(load(folder)))
    return path


def render(run: Run) -> str:
    """The report as one HTML document that loads nothing else."""
    steps = run.steps()
    columns = sorted(run.images_of("prompt"))
    return (
        environment()
        .get_template("report.html.j2")
        .render(
            run=run,
            failed=statements.failed(run),
            summary=statements.summary(run),
            ending=statements.ending(run),
            warnings=statements.warnings(run),
            notes=statements.notes(run),
            facts=statements.facts(run),
            description=describe(run),
            reward=_reward(run),
            reward_notes=_reward_notes(run),
            held_out=_held_out_plots(run),
            columns=columns,
            rows=image_rows(run, columns),
            shown=min(2, len(columns)),
            extremes=_extremes(run),
            previews=_previews(run),
            size=image_size(run),
            changed=changed_settings(run.settings),
            scorers=_scorers(run),
            diversity=_plots(run.lines, DIVERSITY_LABELS),
            statistics=_statistics(run),
            evaluations=run.evaluations(),
            evaluation_columns=_evaluation_columns(run),
            folded=len(run.evaluations()) > MOST_ROWS,
            phases=_phases(steps),
            totals=statements.phase_totals(run),
            weights=statements.weight_versions(steps),
            sync=_plot("Seconds of each weight sync", steps, {"timing_s/sync": "seconds"}),
            agreement=statements.agreement(steps),
            difference=_plot("Difference of log-probabilities", steps, DIFFERENCES, logarithmic=True),
            rollout=_plots(steps, _changing(steps, _recorded(steps, ROLLOUT_LABELS))),
            rollout_constants=_constants(steps, _recorded(steps, ROLLOUT_LABELS)),
            actor=_plots(steps, _changing(steps, _actor_labels(steps))),
            constants=_constants(steps, _actor_labels(steps)),
            plotly_js=plotly_js(),
        )
    )


def environment() -> Environment:
    """Jinja's environment of the pages."""
    jinja = Environment(
        loader=PackageLoader("verl_omni.trainer.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    jinja.filters |= {"number": statements.number, "fixed": statements.fixed}
    return jinja


def plotly_js() -> Markup:
    """plotly.js, to be inlined once in a page."""
    return Markup(get_plotlyjs())


def image_rows(run: Run, columns: list[int]) -> list[ImageRow]:
    """Images of the given steps, one row per prompt; if a prompt has several seeds, the seed with the most images."""
    images = run.images_of("prompt")
    by_step = {step: {(image.prompt, image.seed): image for image in images[step]} for step in columns}
    keys = dict.fromkeys(key for step in columns for key in by_step[step])
    rows: dict[str, ImageRow] = {}
    for prompt, seed in keys:
        row = ImageRow(prompt, seed, [by_step[step].get((prompt, seed)) for step in columns])
        known = rows.get(prompt)
        if known is None or row.images.count(None) < known.images.count(None):
            rows[prompt] = row
    return list(rows.values())


def _extremes(run: Run) -> dict[str, list[Image]]:
    """Heading -> the samples with the highest and the lowest scores of the last evaluation shown."""
    extremes = {}
    for heading, kind in (("Best", "best"), ("Worst", "worst")):
        images = run.images_of(kind)  # type: ignore[arg-type]
        if images:
            extremes[f"{heading} of step {max(images)}"] = images[max(images)]
    return extremes


def _previews(run: Run) -> list[ImageRow]:
    """Previews, newest step first."""
    images = run.images_of("preview")
    return [ImageRow(f"step {step}", 0, list(images[step])) for step in sorted(images, reverse=True)]


def image_size(run: Run) -> str:
    """Size class of the run's images, which chooses their layout: small, large, or strips of video frames."""
    images = [image for step in run.images_of("prompt").values() for image in step]
    if any(image.width >= STRIP * image.height for image in images):
        return "strip"
    return "large" if any(image.width >= SMALL for image in images) else "small"


def _reward(run: Run) -> Plot | None:
    if not run.with_metric("reward/mean", "val/reward/mean"):
        return None
    figure = plots.reward_curve(run.steps(), run.evaluations(), "reward/mean", tall=True)
    return as_plot("Reward over the steps", figure)


def _reward_notes(run: Run) -> list[str]:
    """Captions of the reward curve, each for a metric that was recorded."""
    captions = {
        "reward/std": "Band: one standard deviation of a step's samples.",
        "val/reward/stderr": "Error bars: standard error.",
        "val/reward/mean": describe_evaluations(run.settings),
    }
    return [text for name, text in captions.items() if statements.recorded(run.lines, name)]


def _scorers(run: Run) -> list[Plot]:
    return [
        as_plot(
            name.removeprefix("reward/").removesuffix("/mean"), plots.reward_curve(run.steps(), run.evaluations(), name)
        )
        for name in plots.scorer_metrics(run.lines)
        if name not in _held_out(run)
    ]


def _held_out(run: Run) -> dict[str, str]:
    """Metric -> label of each scorer that scores evaluations only."""
    parts = (run.settings.get("reward") or {}).get("reward_functions") or {}
    return {f"reward/reward/{key}/mean": key for key in held_out_scorers(parts)}


def _held_out_plots(run: Run) -> list[Plot]:
    return [
        as_plot(label, plots.reward_curve([], run.evaluations(), metric))
        for metric, label in _held_out(run).items()
        if metric in plots.scorer_metrics(run.lines)
    ]


def _statistics(run: Run) -> list[Plot]:
    """Statistics of training images and of held-out ones, in one plot each."""
    pairs = {name: {name: "training", f"val/{name}": "held-out"} for name in IMAGE_LABELS}
    return [plot for name, label in IMAGE_LABELS.items() if (plot := _plot(label, run.lines, pairs[name]))]


def _phases(steps: list[Line]) -> Plot | None:
    names = ["timing_s/step", *(f"timing_s/{phase}" for phase in statements.phases(steps))]
    if not any(statements.recorded(steps, name) for name in names):
        return None
    return as_plot("Seconds of each step, by phase", plots.phase_bars(steps))


def _evaluation_columns(run: Run) -> dict[str, str]:
    """Metric -> heading of the table of evaluations: the reward first, then the scorers' other metrics."""
    headings = {"val/n": "prompts", "val/reward/mean": "reward", "val/reward/stderr": "standard error"}
    for name in plots.scorer_metrics(run.lines):
        short = name.removeprefix("reward/")
        headings[f"val/{short}"] = short.removesuffix("/mean")
    return {name: text for name, text in headings.items() if any(name in line for line in run.evaluations())}


def _actor_labels(steps: Sequence[Line]) -> dict[str, str]:
    """Label of each recorded metric of the actor; one without a label keeps its name."""
    names = dict.fromkeys(name for line in steps for name in line if name.startswith("actor/"))
    known = {name: label for name, label in ACTOR_LABELS.items() if name in names}
    return known | {name: name for name in names if name not in known}


def _recorded(steps: Sequence[Line], labels: Mapping[str, str]) -> dict[str, str]:
    return {name: label for name, label in labels.items() if statements.recorded(steps, name)}


def _changing(steps: Sequence[Line], labels: Mapping[str, str]) -> dict[str, str]:
    return {name: label for name, label in labels.items() if statements.constant(steps, name) is None}


def _constants(steps: Sequence[Line], labels: Mapping[str, str]) -> list[str]:
    """Sentences on the metrics that never changed."""
    sentences = []
    for name, label in labels.items():
        value = statements.constant(steps, name)
        if value is None:
            continue
        same = ": the old policy was the current one, as with one optimizer step in each update"
        sentences.append(
            f"{label}: {statements.number(value)} at every step{same if name in TO_OLD and value == 0 else ''}."
        )
    return sentences


def _plots(lines: Sequence[Line], labels: Mapping[str, str]) -> list[Plot]:
    """One plot for each metric with a value."""
    return [plot for name, label in labels.items() if (plot := _plot(label, lines, {name: label}))]


def _plot(label: str, lines: Sequence[Line], metrics: Mapping[str, str], *, logarithmic: bool = False) -> Plot | None:
    """A plot of metrics; None if none has a value."""
    if not any(statements.recorded(lines, name) for name in metrics):
        return None
    return as_plot(label, plots.lines_plot(lines, metrics, logarithmic=logarithmic))


def as_plot(label: str, figure: go.Figure) -> Plot:
    """A plot of the page. Plotly escapes `<`, `>` and `/` in its JSON, so no text in it can end the script element."""
    identifier = "".join(character if character.isascii() and character.isalnum() else "-" for character in label)
    return Plot(f"plot-{identifier}", label, Markup(figure.to_json()))
