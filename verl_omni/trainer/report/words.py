"""PURE: a run -> what is to say about it, in sentences and short numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from verl_omni.trainer.report.load import Line, Run

CHANCE = 2.0  # standard errors below which a difference may well be chance
PHASES = ("generate", "update", "sync")


@dataclass(frozen=True, slots=True)
class Fact:
    """A number that stands at the top of the page."""

    label: str
    value: str
    note: str = ""


def number(value: float | None) -> str:
    """A number with as many digits as a reader wants."""
    if value is None or not math.isfinite(value):
        return "–"
    return f"{value:.0f}" if value == int(value) and abs(value) < 1e6 else f"{value:.4g}"


def fixed(value: float | None, digits: int = 2) -> str:
    """A number with so many decimals; what rounds to zero has no sign."""
    return "–" if value is None or not math.isfinite(value) else f"{round(value, digits) + 0.0:.{digits}f}"


def duration(seconds: float) -> str:
    """Seconds in the units a person would use."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    if seconds < 3600:
        return f"{seconds // 60:.0f} min {seconds % 60:.0f} s"
    return f"{seconds // 3600:.0f} h {seconds % 3600 // 60:.0f} min"


def summary(run: Run) -> str:
    """What happened, in a sentence or two."""
    evaluations, steps = run.evaluations(), len(run.steps())
    if not evaluations:
        return f"{_count(steps, 'training step')}; nothing was evaluated on held-out prompts."
    first, last = evaluations[0], evaluations[-1]
    if len(evaluations) == 1:
        return (
            f"{_count(steps, 'training step')}; held-out reward {_value(first, 'val/reward/mean'):.3f} "
            f"at step {number(first['step'])}, evaluated once."
        )
    before, after = (_value(line, "val/reward/mean") for line in (first, last))
    made = _value(last, "step") - _value(first, "step")
    text = (
        f"The held-out reward went from {before:.3f} to {after:.3f} in {made:.0f} steps: {after - before:+.3f}"
        f"{_in_errors(first, last, 'val/reward')}."
    )
    shares = [line.get("val/correct/mean") for line in (first, last)]
    if shares[0] is not None and shares[1] is not None:
        text += f" Right pictures: {shares[0]:.1%} before, {shares[1]:.1%} after."
    return text


def _in_errors(first: Line, last: Line, name: str) -> str:
    """The difference of two evaluations against its standard error (that of independent means)."""
    error = math.hypot(*(line.get(f"{name}/stderr") or 0.0 for line in (first, last)))
    if not error:
        return ""
    ratio = abs(_value(last, f"{name}/mean") - _value(first, f"{name}/mean")) / error
    return f", {ratio:.1f} standard errors" + (", which may be chance" if ratio < CHANCE else "")


def ending(run: Run) -> str:
    """How far the run came, and why it went no further."""
    total = next((event.total_steps for event in reversed(run.events) if event.total_steps), None)
    made = int(_value(run.lines[-1], "step")) if run.lines else 0
    reached = f"step {made}" + (f" of {total}" if total else "")
    began = max((place for place, event in enumerate(run.events) if event.event == "start"), default=0)
    for event in run.events[began:]:
        if event.event == "error":
            return f"It failed at {reached}: {event.message or 'without a message'}"
        if event.event == "stopped":
            return f"It was stopped at {reached}; the same command goes on from its last checkpoint."
    if not run.lines and not run.events:
        return "Nothing was recorded in this folder."
    if total is None or made < total:
        return f"At {reached} it was still running, or had been ended from outside."
    return f"It made all its {_count(total, 'step')}."


def notes(run: Run) -> list[str]:
    """What a reader should know about the record itself."""
    found = []
    resumed = [event.resumed_from for event in run.events if event.resumed_from is not None]
    if resumed:
        places = ", ".join(str(step) for step in dict.fromkeys(resumed))
        found.append(f"It was resumed from step {places}; of steps that were made again, the last ones are shown.")
    steps = [int(_value(line, "step")) for line in run.steps()]
    if steps:
        lacking = sorted(set(range(1, steps[-1] + 1)) - set(steps))
        if lacking:
            found.append(f"{_count(len(lacking), 'step')} without a record: {ranges(lacking)}.")
    else:
        found.append("No training step was finished.")
    if run.unreadable_pictures:
        found.append(f"{_count(run.unreadable_pictures, 'picture')} could not be read and {_are(run)} left out.")
    return found


def _are(run: Run) -> str:
    return "is" if run.unreadable_pictures == 1 else "are"


def ranges(steps: Sequence[int]) -> str:
    """Ascending numbers, runs of them as first–last: 1, 3–5."""
    parts: list[list[int]] = []
    for step in steps:
        if parts and step == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], step]
        else:
            parts.append([step])
    return ", ".join("–".join(str(end) for end in part) for part in parts)


def weights(steps: Sequence[Line]) -> tuple[bool, str]:
    """Whether the engine always drew with the weights of the step, and that in words."""
    wrong = [int(_value(line, "step")) for line in steps if line.get("weights/version") != line["step"]]
    if not wrong:
        return True, "In every step the published weight version equals the step."
    return False, f"The published weight version is not the step at step {ranges(wrong)}: train.log says why."


def agreement(steps: Sequence[Line]) -> str:
    """The worst disagreement of engine and trainer about log-probabilities."""
    known = [line for line in steps if line.get("rollout_corr/mean_abs_diff") is not None]
    if steps and not any("rollout_corr/mean_abs_diff" in line for line in steps):
        return "Does not apply: this algorithm uses no log-probabilities."
    if not known:
        return "Not recorded."
    worst = max(known, key=lambda line: _value(line, "rollout_corr/mean_abs_diff"))
    text = f"The largest mean difference was {_value(worst, 'rollout_corr/mean_abs_diff'):.2g}"
    return f"{text}, at step {number(worst['step'])}."


def facts(run: Run) -> list[Fact]:
    """The numbers at the top of the page."""
    steps, evaluations = run.steps(), run.evaluations()
    found: list[Fact] = []
    if evaluations:
        first, last = evaluations[0], evaluations[-1]
        both = [first, last] if last is not first else [last]
        count = last.get("val/n")
        prompts = f"{number(count)} prompts" if count else ""
        found.append(Fact("Held-out reward", " → ".join(fixed(line["val/reward/mean"], 3) for line in both), prompts))
        shares = [share for line in both if (share := line.get("val/correct/mean")) is not None]
        if len(shares) == len(both):
            found.append(Fact("Right pictures", " → ".join(f"{share:.1%}" for share in shares), prompts))
    if steps:
        rates = [value for line in steps if (value := line.get("images_per_s"))]
        seconds = sum(line.get("timing_s/step") or 0.0 for line in steps)
        found.append(Fact("Training", _count(len(steps), "step"), duration(seconds) if seconds else ""))
        if rates:
            found.append(Fact("Speed", f"{number(median(rates))} pictures/s", "median, training included"))
    return found


def constant(steps: Sequence[Line], metric: str) -> float | None:
    """The value of a metric that never changed and was always there; None otherwise."""
    values = {line.get(metric) for line in steps}
    return values.pop() if len(values) == 1 else None


def phase_totals(run: Run) -> list[Fact]:
    """Seconds of each phase over the run, with their share; evaluations apart, for they are not part of a step."""
    steps = run.steps()
    totals = {phase: sum(line.get(f"timing_s/{phase}") or 0.0 for line in steps) for phase in PHASES}
    whole = sum(line.get("timing_s/step") or 0.0 for line in steps)
    totals["other"] = max(0.0, whole - sum(totals.values()))
    base = sum(totals.values()) or 1.0
    found = [Fact(name, duration(value), f"{value / base:.0%}") for name, value in totals.items()]
    evaluating = sum(line.get("timing_s/eval") or 0.0 for line in run.lines)
    return [*found, Fact("evaluations", duration(evaluating), "beside the steps")] if evaluating else found


def _value(line: Line, name: str) -> float:
    """A number that is known to be there; one that was not finite was written as null."""
    value = line.get(name)
    return float("nan") if value is None else value


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
