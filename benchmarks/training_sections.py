"""PURE: data of whole training runs -> their sections of docs/contribute/benchmarks.md."""

import math
import statistics
from collections.abc import Sequence
from typing import Any

from example_job import gain
from formatting import (
    QUIET_LOAD,
    Data,
    Rows,
    Section,
    number,
    percent,
    share_with_range,
    table,
    verdict,
    with_range,
)
from learning import RISE, VARIANTS

GIB = 2**30


MAIN_TARGET = 0.25
MAIN_MINUTES = 10.0


def main_example(data: Data) -> Section:
    """examples/colors-grpo.yaml over several seeds, and a control that learns nothing."""
    rows: Rows = data["runs"]
    trained = [row for row in rows if not row["control"]]
    gains = [gain(row, "correct")[0] for row in trained]
    mean = statistics.mean(gains)
    error = standard_error(gains)
    slowest = max(row["seconds"] for row in rows) / 60
    flat = all(gain(row, "correct")[0] == 0 for row in rows if row["control"])
    met = mean >= MAIN_TARGET and min(gains) > 0 and slowest <= MAIN_MINUTES and flat
    first = rows[0]["held_out"][0]
    table_of_runs = table(
        [
            "seed",
            *(f"right at step {evaluation['step']}" for evaluation in rows[0]["held_out"]),
            "gain",
            "reward",
            "minutes",
            "peak memory",
        ],
        [
            [
                f"{row['seed']}{', learning rate 0' if row['control'] else ''}",
                *(f"{evaluation['correct/mean']:.1%}" for evaluation in row["held_out"]),
                f"{100 * gain(row, 'correct')[0]:+.1f} points",
                f"{row['held_out'][0]['reward/mean']:.2f} to {row['held_out'][-1]['reward/mean']:.2f}",
                f"{row['seconds'] / 60:.1f}",
                f"{row['peak_bytes'] / GIB:.1f} GiB",
            ]
            for row in rows
        ],
    )
    return Section(
        [
            f"Right is the share of {first['n']} held-out images that show exactly what their prompts say.",
            table_of_runs,
            f"Mean gain over {len(trained)} seeds: {100 * mean:+.1f} ± {100 * error:.1f} points (standard error).",
            verdict(
                met,
                f"25 points more right over three seeds, and less for none, in at most {MAIN_MINUTES:.0f} minutes (the "
                f"slowest run took {slowest:.1f}); none with learning rate 0",
            ),
        ],
        missed=[]
        if met
        else [
            f"The main example gains {100 * mean:.0f} points over its seeds in {slowest:.1f} minutes; the target is 25 "
            f"in {MAIN_MINUTES:.0f}, and none with learning rate 0."
        ],
    )


def smallest_example(data: Data) -> Section:
    """examples/red-grpo.yaml over several seeds, and a control that learns nothing."""
    rows: Rows = data["runs"]
    trained = [row for row in rows if not row["control"]]
    steps = [evaluation["step"] for evaluation in rows[0]["held_out"]]
    gains = [gain(row, "reward")[0] for row in trained]
    error = standard_error(gains)
    phases = {name: sum(row["phases"][name] for row in trained) for name in ("generate", "update", "sync")}
    shares = {name: percent(seconds / sum(phases.values())) for name, seconds in phases.items()}
    return Section(
        [
            table(
                [
                    "seed",
                    f"held-out reward at step {steps[0]}",
                    *(f"step {step}" for step in steps[1:]),
                    "gain",
                    "whole run",
                    "in steps",
                    "peak memory",
                ],
                [_run(row) for row in rows],
            ),
            f"Mean gain over {len(trained)} seeds: {statistics.mean(gains):+.3f} ± {error:.3f} (standard error), on "
            f"{rows[0]['held_out'][0]['n']} held-out images. A step of 32 images is {shares['generate']} generation, "
            f"{shares['update']} update and {shares['sync']} weight sync. Peak memory sums the proportional set sizes "
            "of all processes.",
        ]
    )


def _run(row: dict[str, Any]) -> list[str]:
    first, *others = row["held_out"]
    rise, _ = gain(row, "reward")
    return [
        f"{row['seed']}{', learning rate 0' if row['control'] else ''}",
        f"{first['reward/mean']:.3f} ± {first['reward/stderr']:.3f}",
        *(f"{evaluation['reward/mean']:.3f}" for evaluation in others),
        f"{rise:+.3f}" if rise else "0.000",
        f"{row['seconds']:.0f} s",
        f"{row['seconds_in_steps']:.0f} s",
        f"{row['peak_bytes'] / GIB:.1f} GiB",
    ]


def compositional_reward(data: Data) -> Section:
    """examples/shapes-grpo.yaml, half of its steps."""
    (row,) = data["runs"]
    first = row["held_out"][0]
    last = row["held_out"][-1]
    rise, error = gain(row, "reward")
    return Section(
        [
            f"One seed and {row['steps']} of the job's 120 steps. Correct held-out images rise from "
            f"{first['correct/mean']:.1%} to {last['correct/mean']:.1%} of {first['n']}, the reward from "
            f"{first['reward/mean']:.3f} to {last['reward/mean']:.3f} ({rise / error:.1f} standard errors): a trend, "
            f"not a proof. The run takes {row['seconds']:.0f} s; peak memory is {row['peak_bytes'] / GIB:.1f} GiB."
        ],
        missed=[
            f"Half of the compositional example raises the share of correct images from {first['correct/mean']:.0%} to "
            f"{last['correct/mean']:.0%} with one seed; the target is ten percentage points over three seeds."
        ],
    )


def start_up(data: Data) -> Section:
    """From the command to the first weights and the first step."""
    rows: Rows = data["runs"]

    def median(metric: str, fork: bool) -> float:
        return statistics.median(row[metric] for row in rows if row["fork"] == fork)

    def cells(text: str, metric: str, scale: float, unit: str) -> list[str]:
        plain, forked = (median(metric, fork) / scale for fork in (False, True))
        return [text, f"{plain:.1f} {unit}", f"{forked:.1f} {unit}", number(plain / forked)]

    pairs = len(rows) // 2
    return Section(
        [
            "A job of one step, with Ray workers that import their own modules, and with forked workers "
            "([ADR 7](../adr/0007-forked-ray-workers.md), the default without a GPU), on an otherwise idle machine; "
            f"counted pairs: {pairs}.",
            table(
                ["from the command to", "separate imports", "forked", "ratio"],
                [
                    cells("the first weights in the engine", "weights", 1, "s"),
                    cells("the end of the first step, with the evaluation before it", "step", 1, "s"),
                    cells("peak memory", "peak_bytes", GIB, "GiB"),
                ],
            ),
        ]
    )


PEER_ROWS = (
    # heading, metric, mode, scale
    ("s/step, one thread per process", "step_seconds", "one", 1),
    ("s/step, each program's own defaults", "step_seconds", "default", 1),
    ("slowest step over the median", "slowest_over_median", "one", 1),
    ("CPU seconds a step", "cpu_seconds_a_step", "one", 1),
    ("seconds to the end of the first step", "first_step_seconds", "default", 1),
    ("of which the training stack is imported, on one core", "import_seconds", "default", 1),
    ("CPU seconds to the end of the first step", "first_step_cpu_seconds", "one", 1),
    ("seconds to the end of the last step", "whole_seconds", "default", 1),
    ("peak memory, GiB", "peak_bytes", "memory", GIB),
    ("processes", "processes", "memory", 1),
)


# Heading, the program that the trainer is compared with, and at most how many times its value.
PEER_TARGETS = (
    ("s/step, one thread per process", "flow_grpo", 0.85),
    ("s/step, each program's own defaults", "flow_grpo", 1.0),
    ("CPU seconds a step", "plain loop", 1.25),
    ("seconds to the end of the first step", "flow_grpo", 1.5),
    ("seconds to the end of the last step", "flow_grpo", 1.0),
    ("peak memory, GiB", "flow_grpo", 1.3),
)


def peer_values(rows: Rows, program: str, metric: str, mode: str) -> list[float]:
    """What the runs of a program in a mode measured."""
    return [row[metric] for row in rows if (row["program"], row["mode"]) == (program, mode) and metric in row]


def missed_peers(data: Data) -> list[str]:
    """A sentence for each target that is missed, of the programs that ran."""
    rows: Rows = data["runs"]
    columns = {heading: (metric, mode) for heading, metric, mode, _ in PEER_ROWS}
    sentences = []
    for heading, peer, target in PEER_TARGETS:
        here, theirs = (peer_values(rows, program, *columns[heading]) for program in ("here", peer))
        if here and theirs and (ratio := statistics.median(here) / statistics.median(theirs)) > target:
            sentences.append(f"Next to {peer}, {heading}: {number(ratio)} times its value; the target is {target:g}.")
    return sentences


def peers_table(data: Data) -> tuple[list[str], list[list[str]]]:
    """Names of the columns, and a row for each figure: median (lowest-highest) of each program."""
    rows: Rows = data["runs"]
    programs = list(dict.fromkeys(row["program"] for row in rows))

    def cell(program: str, metric: str, mode: str, scale: float) -> str:
        values = [value / scale for value in peer_values(rows, program, metric, mode)]
        if not values:
            return ""
        median = number(statistics.median(values))
        return median if min(values) == max(values) else f"{median} ({number(min(values))}-{number(max(values))})"

    lines = [
        [text, *(cell(program, metric, mode, scale) for program in programs)] for text, metric, mode, scale in PEER_ROWS
    ]
    return ["", *programs], [line for line in lines if any(line[1:])]


def _busy(data: Data) -> str:
    """A sentence where the load of the machine was more than a quiet one's."""
    if data["load"] <= QUIET_LOAD:
        return ""
    return f" The load of the machine was {data['load']:.1f} at the start: other work took part of its time."


def peers(data: Data) -> Section:
    """The trainer next to a plain loop and flow_grpo's trainer."""
    turns = 1 + max(row["turn"] for row in data["runs"])
    scorer = "" if data["pixels"] == 64 else " and the scorer `jpeg`"  # the example's takes 64 px only
    return Section(
        [
            f"{data['steps']} steps of {data['images']} images of {data['pixels']} px of examples/colors-grpo.yaml, "
            f"with an evaluation before the first step and one after the last{scorer}. The plain loop is one "
            "process with diffusers and peft; [flow_grpo](https://github.com/yifan123/flow_grpo) is its trainer of "
            "Stable Diffusion 3 with the same sizes, adapter and scorer. The "
            f"programs take turns, up to {turns} each; memory is read in separate runs." + _busy(data),
            table(*peers_table(data)),
        ],
        missed=missed_peers(data),
    )


def growth_table(data: Data) -> tuple[list[str], list[list[str]]]:
    """Names of the columns, and a row for each size."""
    lines = [
        [
            f"{row['kind']}: {row['size']:,}",
            f"{number(row['seconds_an_image'] * 1e3)} "
            f"({number(row['seconds_an_image_lowest'] * 1e3)}-{number(row['seconds_an_image_highest'] * 1e3)})",
            f"{row['driver_bytes'] / 2**20:,.0f}",
        ]
        for row in data["runs"]
    ]
    return ["size", "ms per image", "driver, MiB"], lines


def growth(data: Data) -> Section:
    """Time per image and memory of the driver at other sizes."""
    return Section(
        [
            f"{data['steps']} steps of examples/colors-grpo.yaml with one size changed, of which the first is not "
            "counted: generation, scores, update and weight sync. A step has 128 images of 64 px, for resolutions "
            "32 with the scorer `jpeg`." + _busy(data),
            table(*growth_table(data)),
        ]
    )


def real_size(data: Data) -> Section:
    """A step of Flow-GRPO with the transformer of a public model."""
    (run,) = data["runs"]
    metrics = run["metrics"]
    highest = max(run["phases"], key=lambda row: row["measured"])
    ratio = max(row["estimated"] for row in run["phases"]) / highest["measured"]
    met = abs(ratio - 1) <= FIT_TARGET and run["bound_modules"] == run["modules"]
    return Section(
        [
            f"Stable Diffusion 3.5 Medium with random weights ({run['layers']} layers, "
            f"{run['parameters'] / 1e9:.1f} billion parameters in bfloat16, {run['trained_parameters'] / 1e6:.0f} "
            "million trained) and small text encoders. One step of two samples of 256 x 256 with guidance, activation "
            "checkpointing and micro-batches of one sample.",
            table(
                ["phase", "`drl fit`", "measured", "ratio", "seconds"],
                [
                    [
                        row["phase"],
                        f"{row['estimated'] / GIB:.1f} GiB",
                        f"{row['measured'] / GIB:.1f} GiB",
                        number(row["ratio"]),
                        f"{row['seconds']:.0f}",
                    ]
                    for row in run["phases"]
                ],
            ),
            f"The engine bound {run['bound_modules']} of the adapter's {run['modules']} modules. Velocities of engine "
            f"and trainer differ by {percent_of(metrics['rollout_corr/velocity_rel_diff'])}, log-probabilities by "
            f"{metrics['rollout_corr/mean_abs_diff']:.1g}.",
            verdict(met, "the estimate is within 15% of the measured peak, and every module is bound"),
        ],
        missed=[]
        if met
        else [
            f"At a real size, the estimate of `drl fit` is {number(ratio)} of the measured peak on the CPU; the target "
            "is 15%."
        ],
    )


def percent_of(value: float) -> str:
    """A small share in percent, with two digits."""
    return f"{100 * value:.2g}%"


FIT_TARGET = 0.15
OVERLAP_TARGET = 1.1


def generation_ahead(data: Data) -> Section:
    """Time of the asynchronous loop's steps relative to the synchronous loop's."""
    rows: Rows = data["runs"]
    worst = max(row["ratio"] / row["ideal"] for row in rows)
    met = worst <= OVERLAP_TARGET
    cells = [
        [f"{row['generation_s']} s", f"{row['update_s']} s", f"{row['ideal']:.3f}", f"{row['ratio']:.3f}"]
        for row in rows
    ]
    return Section(
        [
            f"Runs of {data['steps']} steps whose generation and update only sleep, with `trainer.v1.trainer_mode="
            "separate_async` and without. Ideally, a step takes the longer of both.",
            table(["generation", "update", "ideal ratio", "ratio of the seconds"], cells),
            verdict(met, f"within 10% of the ideal; the largest is {number(worst)} times it"),
        ],
        missed=[] if met else [f"An asynchronous step takes {number(worst)} times the ideal; the target is 1.1."],
    )


LOSS_PARTS = {
    "scheduling": "until the replacement has a node",
    "start": "until its engine is ready",
    "sync": "until it has the current weights",
    "sample": "until its first sample",
}


def replica_loss(data: Data) -> Section:
    """From the loss of a replica to the first sample of the one that replaces it."""
    (row,) = data["runs"]
    cells = [
        [f"{part}: {words}", share_with_range(row, f"{part}_share"), with_range(row, f"{part}_s")]
        for part, words in LOSS_PARTS.items()
    ]
    return Section(
        [
            f"The only rollout replica of a run is lost {row['losses']} times while it generates: its Ray node is "
            f"killed, and a new one joins Ray after {with_range(row, 'node_s')} s. From the kill to the first sample "
            f"of the replacement it takes {with_range(row, 'total_s')} s. Your runs have these times in their "
            "[events](../guides/results.md#events)." + _busy(data),
            table(["part", "share of the time", "seconds"], cells),
            "The model is tiny: a real one adds the time to load its weights. The trainer looks for nodes every "
            f"{number(data['poll_s'])} s.",
        ]
    )


def learning(data: Data) -> Section:
    """examples/red-grpo.yaml with settings that change what is learned."""
    rows: Rows = data["runs"]

    def scores(row: dict[str, Any]) -> list[str]:
        name = f"{VARIANTS[row['variant']].score}/mean"
        return [f"{evaluation[name]:.3f}" for evaluation in row["held_out"][1:]]

    first, *later = rows[0]["held_out"]
    wrong = [row["variant"] for row in rows if not VARIANTS[row["variant"]].as_expected(row)]
    return Section(
        [
            f"The smallest example, {later[-1]['step']} steps, each row with one change. The score is the held-out "
            f"mean of `color` over 200 images, {first['reward/mean']:.3f} before training.",
            table(
                ["variant", "seed", *(f"step {evaluation['step']}" for evaluation in later)],
                [[VARIANTS[row["variant"]].text, row["seed"], *scores(row)] for row in rows],
            ),
            "`jpeg` has a larger range than `color` and dominates the weighted mean, not the normalized sum. A strong "
            "KL holds the policy to the base model.",
            verdict(not wrong, f"scores that should rise do by more than {RISE}, the others do not"),
        ],
        missed=[f"Held-out scores did not move as expected: {', '.join(wrong)}."] if wrong else [],
    )


SEEDS_FOR_STALENESS = 3


def standard_error(values: Sequence[float]) -> float:
    """Standard error of the mean of at least two values."""
    return statistics.stdev(values) / math.sqrt(len(values))


WINDOW_VARIANTS = {"prompt": "shared by the samples of a prompt (default)", "sample": "one for each sample"}


def by_setting(runs: Rows) -> dict[tuple[tuple[str, ...], int], list[float]]:
    """The last held-out reward of each seed, by changed settings and staleness."""
    groups: dict[tuple[tuple[str, ...], int], list[float]] = {}
    for row in runs:
        groups.setdefault((tuple(row["changes"]), row["ahead"]), []).append(row["held_out"][-1]["reward/mean"])
    return groups


def last_rewards(groups: dict[tuple[tuple[str, ...], int], list[float]]) -> str:
    """A table of the groups; a setting has the last part of its name."""
    cells = []
    for (changes, ahead), rewards in groups.items():
        settings = ", ".join(
            f"`{change.partition('=')[0].rpartition('.')[2]}={change.partition('=')[2]}`" for change in changes
        )
        error = f" ± {standard_error(rewards):.3f}" if len(rewards) > 1 else ""
        listed = ", ".join(f"{reward:.3f}" for reward in rewards)
        cells.append([settings, str(ahead), listed, f"{statistics.mean(rewards):.3f}{error}"])
    return table(["settings", "staleness", "last reward of each seed", "mean"], cells)


def sde_window(data: Data) -> Section:
    """examples/colors-grpo.yaml with a random SDE window, shared by the samples of a prompt or of each sample."""
    runs = data["runs"]
    window = data["window"]
    rows = []
    gains = {}
    for variant, text in WINDOW_VARIANTS.items():
        runs_of_variant = sorted((run for run in runs if run["variant"] == variant), key=lambda run: run["seed"])
        gains[variant] = [gain(run, "reward")[0] for run in runs_of_variant]
        rows.append([text, *(f"{run['held_out'][-1]['reward/mean']:.3f}" for run in runs_of_variant)])
    means = {variant: statistics.mean(values) for variant, values in gains.items()}
    compared = (
        f"The reward rises by {means['prompt']:.3f} with a shared window, and by {means['sample']:.3f} with one for "
        "each sample"
    )
    if min(len(values) for values in gains.values()) < SEEDS_FOR_STALENESS:
        compared += f"; too few runs to compare them, of which {SEEDS_FOR_STALENESS} seeds each are needed."
    else:
        error = math.hypot(*(standard_error(values) for values in gains.values()))
        difference = means["prompt"] - means["sample"]
        finding = "no difference was found" if abs(difference) <= 2 * error else "that is more than twice as much"
        compared += f": {difference:+.3f}, with a standard error over the seeds of {error:.3f}, so {finding}."
    return Section(
        [
            f"The main example with noise in {window['size']} consecutive steps of the first {window['end']}, after "
            f"{runs[0]['steps']} training steps.",
            table(["window", *(f"reward, seed {run['seed']}" for run in runs_of_variant)], rows),
            compared,
        ],
    )


def staleness(data: Data) -> Section:
    """examples/red-grpo.yaml with samples of older weights, against the synchronous run of the same seed."""
    rows: Rows = data["runs"]
    groups = by_setting(rows)
    last = {ahead: groups[(), ahead] for ahead in (0, 1, 2)}
    seeds = len(last[0])
    target = "over three seeds, the synchronous run's last reward within its standard error"
    if seeds < SEEDS_FOR_STALENESS:
        missed = f"With samples up to two versions old, the held-out reward was measured with {seeds} of three seeds."
        met = False
    else:
        mean = {ahead: statistics.mean(values) for ahead, values in last.items()}
        error = {ahead: standard_error(values) for ahead, values in last.items()}
        below = {ahead: mean[0] - mean[ahead] for ahead in (1, 2)}
        met = max(below.values()) <= error[0]
        missed = (
            f"With samples one version old, the last held-out reward of the smallest example is {below[1]:.3f} below "
            f"synchronous runs, with samples two versions old {below[2]:.3f}; the target is within the "
            f"standard error over {seeds} seeds, {error[0]:.3f}."
        )
    return Section(
        [
            "The smallest example, whose learning rate is high, with batches generated 0 (synchronous), 1 and 2 steps "
            "ahead: samples are as many weight versions old.",
            last_rewards(groups),
            verdict(met, target),
        ],
        missed=[] if met else [missed],
    )


def staleness_with_limit(data: Data) -> Section:
    """examples/colors-grpo.yaml with samples of older weights, and what `clip_ratio` with `bypass_mode` does."""
    groups = by_setting(data["runs"])
    mean = {key: statistics.mean(values) for key, values in groups.items()}
    error = {key: standard_error(values) for key, values in groups.items() if len(values) > 1}
    complete = [key for key, values in groups.items() if len(values) >= SEEDS_FOR_STALENESS]
    new = max((key for key in complete if key[1] == 0), key=lambda key: mean[key])
    best = {ahead: max((key for key in complete if key[1] == ahead), key=lambda key: mean[key]) for ahead in (1, 2)}
    below = {ahead: mean[new] - mean[key] for ahead, key in best.items()}
    met = max(below.values()) <= error[new]
    shown = {key: values for key, values in groups.items() if key in complete or not key[0]}
    first = data["runs"][0]["held_out"][0]["reward/mean"]
    return Section(
        [
            "The same with the main example, whose learning rate falls to zero. With `bypass_mode`, the ratio is to "
            "the policy that generated the samples, and `clip_ratio` limits how far training moves from it. The reward "
            f"before training is {first:.3f}; the error of one value is about 0.02.",
            last_rewards(shown),
            verdict(met, "over three seeds, the synchronous run's last reward within its standard error"),
        ],
        missed=[]
        if met
        else [
            f"With samples one version old, the last held-out reward of the main example is {below[1]:.3f} below "
            f"synchronous runs, with samples two versions old {below[2]:.3f}, with the best `clip_ratio` of those "
            f"tried; the target is within the standard error over the seeds, {error[new]:.3f}."
        ],
    )
