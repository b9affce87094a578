"""The HTML page that compares runs: their results, settings that differ, images of the same prompts, and plots."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from verl_omni.trainer.report import page, plots, statements
from verl_omni.trainer.report.changed_settings import NAMES, flatten, shown_value
from verl_omni.trainer.report.run_data import Run, load
from verl_omni.trainer.run.run_folder import atomic_write

MOST_RUNS = len(plots.RUN_COLORS)
METRICS = page.DIVERSITY_LABELS | page.ACTOR_LABELS | {"timing_s/step": "Seconds of each step"}


def write(folders: Sequence[Path], to: Path) -> Path:
    """Write the comparison of two or more run folders.

    Raises:
        ValueError: a file of a folder is malformed, or there are too many runs.
    """
    if len(folders) > MOST_RUNS:
        raise ValueError(f"at most {MOST_RUNS} runs can be compared, not {len(folders)}")
    runs = {name: load(folder) for name, folder in zip(names(folders), folders, strict=True)}
    atomic_write(to, render(runs))
    return to


def names(folders: Sequence[Path]) -> list[str]:
    """A name for each folder: its own, or, where two have the same, as much of the path as tells them apart."""
    paths = [folder.resolve() for folder in folders]
    if len({path.name for path in paths}) == len(paths):
        return [path.name for path in paths]
    common = Path(os.path.commonpath(paths)) if len(set(paths)) > 1 else paths[0].parent
    return [str(path.relative_to(common)) for path in paths]


def render(runs: Mapping[str, Run]) -> str:
    """The comparison as one HTML document that loads nothing else."""
    every = list(runs.values())
    rows = image_rows(every)
    last = {name: max(images) for name, run in runs.items() if (images := run.images_of("prompt"))}
    return (
        page.environment()
        .get_template("comparison.html.j2")
        .render(
            columns=list(runs),
            summaries={name: statements.summary(run) for name, run in runs.items()},
            endings={name: statements.ending(run) for name, run in runs.items()},
            failed=[name for name, run in runs.items() if statements.failed(run)],
            warnings={name: statements.warnings(run) for name, run in runs.items()},
            reward=_reward(runs),
            results=results(every),
            differences=differences([run.settings for run in every]),
            rows=rows,
            shown=len(runs),
            last=last,
            size=page.image_size(every[0]),
            others=list(_others(runs)),
            plotly_js=page.plotly_js(),
        )
    )


def results(runs: Sequence[Run]) -> dict[str, list[str]]:
    """Label -> value of each run; a row that no run has is left out."""
    rows = {
        "steps": [str(len(run.steps())) for run in runs],
        "held-out reward, first": [_held_out(run, 0) for run in runs],
        "held-out reward, last": [_held_out(run, -1) for run in runs],
        "reward of the last step": [_last(run, "reward/mean") for run in runs],
        "seconds per step, median": [_median(run, "timing_s/step") for run in runs],
        "images per second, median": [_median(run, "images_per_s") for run in runs],
    }
    return {
        label: values for label, values in rows.items() if any(value != statements.number(None) for value in values)
    }


def differences(settings: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Name -> value in each run, of the settings that are not the same in all; `–` where a run does not have it."""
    flat = [dict(flatten(run)) for run in settings]
    known = dict.fromkeys(name for run in flat for name in run if name not in NAMES)
    by_name = {name: [shown_value(run, name) for run in flat] for name in known}
    return {name: values for name, values in sorted(by_name.items()) if len(set(values)) > 1}


def image_rows(runs: Sequence[Run]) -> list[page.ImageRow]:
    """Prompts that the last evaluation of every run has images of, from the same seed; no prompt twice."""
    of_prompts = [run.images_of("prompt") for run in runs]
    if not all(of_prompts):
        return []
    images_of_runs = [{(image.prompt, image.seed): image for image in images[max(images)]} for images in of_prompts]
    shared = [key for key in images_of_runs[0] if all(key in images for images in images_of_runs)]
    rows = {
        prompt: page.ImageRow(prompt, seed, [images[prompt, seed] for images in images_of_runs])
        for prompt, seed in shared
    }
    return list(rows.values())


def _held_out(run: Run, place: int) -> str:
    known = statements.recorded(run.evaluations(), "val/reward/mean")
    if not known:
        return statements.number(None)
    line = known[place]
    error = line.get("val/reward/stderr")
    return statements.fixed(line["val/reward/mean"], 3) + (f" ± {error:.3f}" if error is not None else "")


def _last(run: Run, metric: str) -> str:
    known = statements.recorded(run.steps(), metric)
    return statements.fixed(known[-1][metric], 3) if known else statements.number(None)


def _median(run: Run, metric: str) -> str:
    known = [value for line in run.steps() if (value := line.get(metric)) is not None]
    return statements.number(median(known) if known else None)


def _reward(runs: Mapping[str, Run]) -> page.Plot | None:
    if not any(run.with_metric("reward/mean", "val/reward/mean") for run in runs.values()):
        return None
    figure = plots.rewards_of_runs({name: (run.steps(), run.evaluations()) for name, run in runs.items()})
    return page.as_plot("Reward over the steps", figure)


def _others(runs: Mapping[str, Run]) -> Iterator[page.Plot]:
    lines = [line for run in runs.values() for line in run.lines]
    scorers = {name: name.removeprefix("reward/").removesuffix("/mean") for name in plots.scorer_metrics(lines)}
    for name, label in (scorers | METRICS).items():
        having = {key: run.lines for key, run in runs.items() if statements.recorded(run.lines, name)}
        values = {line[name] for lines_of_run in having.values() for line in statements.recorded(lines_of_run, name)}
        if len(having) > 1 and len(values) > 1:  # a plot of one value everywhere says nothing
            yield page.as_plot(label, plots.metric_of_runs(having, name))
