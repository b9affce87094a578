"""PURE: a run -> sentences and short values. There is a statement about a metric only if the run recorded it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from verl_omni.trainer.report.run_data import Event, Line, Run

SIGNIFICANT = 2.0  # standard errors; a smaller difference is within noise
COLLAPSED = "SamplesCollapsed"
EXPLANATIONS = {
    "PolicyDiverged": "The updates of this run move its policy too far, so that later samples may be worse than those "
    "of the base model.",
    "RewardOveroptimized": "The trained reward rises while a held-out scorer falls: the model exploits the reward.",
    "SamplesNotScored": "A scorer gave no score for some samples, which are in no mean of it. Samples without a reward "
    "are not trained on.",
    "RewardConstant": "The reward of this run told no two samples of a prompt apart, so the model learned nothing.",
    "SamplesDegraded": "The training images of this run became much darker, flatter, noisier or more alike than in its "
    "first steps. If the reward does not ask for that, the policy exploits its scorer.",
    COLLAPSED: "The samples of this run collapsed: the images of different prompts became alike, or the samples of a "
    "prompt all got almost the same reward. The model learns nothing more from such samples.",
}


@dataclass(frozen=True, slots=True)
class Fact:
    """A value with a label, and a note on it."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class WarningGroup:
    """All warnings with one reason: what the reason means, and each message with its step."""

    title: str
    explanation: str
    messages: list[str]


def number(value: float | None) -> str:
    """Four significant digits; an en dash if there is no finite value."""
    if value is None or not math.isfinite(value):
        return "–"
    return f"{value:.0f}" if value == int(value) and abs(value) < 1e6 else f"{value:.4g}"


def fixed(value: float | None, digits: int = 2) -> str:
    """Fixed decimals, without a negative zero; an en dash if there is no finite value."""
    return "–" if value is None or not math.isfinite(value) else f"{round(value, digits) + 0.0:.{digits}f}"


def duration(seconds: float) -> str:
    """Seconds in readable units."""
    if seconds < 59.95:  # with three digits, more is 60
        return f"{seconds:.3g} s"
    minutes, remainder = divmod(round(seconds), 60)
    return f"{minutes} min {remainder} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def summary(run: Run) -> str:
    """The result of the run in one or two sentences."""
    steps = len(run.steps())
    evaluations = recorded(run.evaluations(), "val/reward/mean")
    trained = recorded(run.steps(), "reward/mean")
    if len(evaluations) > 1:
        text = _change(evaluations[0], evaluations[-1])
    elif evaluations:
        only = evaluations[0]
        text = (
            f"{_count(steps, 'training step')}. The held-out reward is {fixed(only['val/reward/mean'], 3)} at step "
            f"{number(only['step'])}, the only evaluation."
        )
    elif len(trained) > 1:
        first = trained[0]
        last = trained[-1]
        text = (
            f"{_count(steps, 'training step')}. The reward of the training samples is "
            f"{fixed(first['reward/mean'], 3)} at step {number(first['step'])} and {fixed(last['reward/mean'], 3)} at "
            f"step {number(last['step'])}."
        )
    else:
        text = f"{_count(steps, 'training step')}."
    shares = [line["val/correct/mean"] for line in recorded(run.evaluations(), "val/correct/mean")]
    if len(shares) > 1:
        text += f" Correct images: {shares[0]:.1%} before, {shares[-1]:.1%} after."
    return text


def _change(first: Line, last: Line) -> str:
    """How the held-out reward changed, compared with the standard error of the difference of independent means."""
    before, after = (_value(line, "val/reward/mean") for line in (first, last))
    error = math.hypot(*(line.get("val/reward/stderr") or 0.0 for line in (first, last)))
    errors = abs(after - before) / error if error else math.inf
    if errors < SIGNIFICANT:
        verb = "changed"
        ending = ", which is within noise"
    else:
        verb = "rose" if after > before else "fell" if after < before else "stayed"
        ending = ""
    note = f", {errors:.1f} standard errors{ending}" if error else ""
    steps = _count(int(_value(last, "step") - _value(first, "step")), "step")
    gain = round(after - before, 3) + 0.0  # without a negative zero
    return f"The held-out reward {verb} from {before:.3f} to {after:.3f} in {steps} ({gain:+.3f}{note})."


def failed(run: Run) -> bool:
    """Whether the last attempt ended with an error."""
    return any(event.event == "error" for event in _last_attempt(run))


def ending(run: Run) -> str:
    """How far the run got, and why it ended."""
    if not run.lines and not run.events:
        return "This folder contains no metrics and no events."
    total = next((event.total_steps for event in reversed(run.events) if event.total_steps), None)
    last = int(_value(run.lines[-1], "step")) if run.lines else 0
    reached = f"step {last}" + (f" of {total}" if total else "")
    for event in _last_attempt(run):
        if event.event == "error":
            return f"Failed at {reached}: {event.message or 'no message'}"
        if event.event == "stopped":
            return f"Stopped at {reached}. Run the same command to resume from the last checkpoint."
        if event.event == "done" and total is not None and last < total:
            return f"Ended early, at {reached}: the reward was exploited (reward.early_stopping_patience)."
    if total is None or last < total:
        return f"At {reached}: still running, or ended without a final event."
    return "Completed its only step." if total == 1 else f"Completed all {total} steps."


def _last_attempt(run: Run) -> Sequence[Event]:
    began = max((index for index, event in enumerate(run.events) if event.event == "start"), default=0)
    return run.events[began:]


def warnings(run: Run) -> list[WarningGroup]:
    """All warnings of the run by reason, the collapse of the samples first; repeated ones are listed once.

    A warning without a step belongs to the last step recorded before it in the same attempt.
    """
    by_reason: dict[str, dict[str, None]] = {}
    step: int | None = None
    for event in run.events:
        if event.event in ("start", "step"):
            step = event.step
        elif event.event == "warning":
            warned_step = event.step if event.step is not None else step
            where = f"Step {warned_step}: " if warned_step is not None else ""
            by_reason.setdefault(event.reason or "", {})[f"{where}{event.message or 'no message'}"] = None
    reasons = sorted(by_reason, key=lambda reason: reason != COLLAPSED)
    return [
        WarningGroup(
            f"Warning: {reason}" if reason else "Warning", EXPLANATIONS.get(reason, ""), list(by_reason[reason])
        )
        for reason in reasons
    ]


def notes(run: Run) -> list[str]:
    """Gaps and irregularities of the record."""
    sentences = []
    resumed = dict.fromkeys(event.resumed_from for event in run.events if event.resumed_from is not None)
    if resumed:
        places = ", ".join(str(step) for step in resumed)
        sentences.append(f"Resumed from step {places}. For repeated steps, the last result is shown.")
    steps = [int(_value(line, "step")) for line in run.steps()]
    missing = sorted(set(range(1, max(steps, default=0) + 1)) - set(steps))
    if missing:
        sentences.append(f"{_count(len(missing), 'step')} without metrics: {ranges(missing)}.")
    for name in dict.fromkeys(name for line in run.lines for name in line):
        undefined = [int(_value(line, "step")) for line in run.lines if name in line and line[name] is None]
        if undefined:
            sentences.append(f"{name} is not a finite number at step {ranges(undefined)}.")
    sentences += _unscored(run.steps(), "reward/unscored", "training sample", "step")
    sentences += _unscored(run.evaluations(), "val/reward/unscored", "held-out sample", "the evaluation of step")
    if run.unreadable_images:
        sentences.append(f"{_count(run.unreadable_images, 'image')} missing or malformed, and not shown.")
    return sentences


def _unscored(lines: Sequence[Line], metric: str, noun: str, place: str) -> list[str]:
    known = recorded(lines, metric)
    if not known:
        return []
    steps = ranges([int(_value(line, "step")) for line in known])
    return [f"{_count(int(_sum(known, metric)), noun)} could not be scored, at {place} {steps}."]


def ranges(steps: Sequence[int]) -> str:
    """Ascending numbers, with consecutive ones as first–last: 1, 3–5."""
    parts: list[list[int]] = []
    for step in steps:
        if parts and step == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], step]
        else:
            parts.append([step])
    return ", ".join("–".join(str(end) for end in part) for part in parts)


def weight_versions(steps: Sequence[Line]) -> tuple[bool, str] | None:
    """Whether the engine had the weights of each step, and the sentence on it; None if no version was recorded."""
    known = [line for line in steps if "weights/version" in line]
    if not known:
        return None
    wrong = [int(_value(line, "step")) for line in known if line["weights/version"] != line["step"]]
    if not wrong:
        return True, "At every recorded step, the published weight version equals the step."
    return False, f"The published weight version differs from the step at step {ranges(wrong)}; see train.log."


def agreement(steps: Sequence[Line]) -> str | None:
    """The largest mean difference of log-probabilities between engine and trainer; None if none was recorded."""
    known = recorded(steps, "rollout_corr/mean_abs_diff")
    if not known:
        return None
    worst = max(known, key=lambda line: _value(line, "rollout_corr/mean_abs_diff"))
    return (
        f"The largest mean difference is {_value(worst, 'rollout_corr/mean_abs_diff'):.2g}, "
        f"at step {number(worst['step'])}."
    )


def facts(run: Run) -> list[Fact]:
    """The key results at the top of the page."""
    steps = run.steps()
    key_facts: list[Fact] = []
    evaluated = recorded(run.evaluations(), "val/reward/mean")
    if evaluated:
        count = evaluated[-1].get("val/n")
        prompts = f"{number(count)} prompts" if count else ""
        key_facts.append(Fact("Held-out reward", _first_to_last(evaluated, "val/reward/mean", ".3f"), prompts))
    if correct := recorded(run.evaluations(), "val/correct/mean"):
        key_facts.append(Fact("Correct images", _first_to_last(correct, "val/correct/mean", ".1%")))
    if pictures := recorded(run.lines, "diversity/images"):
        key_facts.append(Fact("Image diversity", _first_to_last(pictures, "diversity/images", ".3g")))
    if steps:
        key_facts.append(Fact("Training steps", str(len(steps))))
    if rates := recorded(steps, "images_per_s"):
        value = median(_value(line, "images_per_s") for line in rates)
        key_facts.append(Fact("Throughput", f"{number(value)} images/s", "median of the steps"))
    return key_facts


def _first_to_last(lines: Sequence[Line], metric: str, form: str) -> str:
    both = [lines[0], lines[-1]] if len(lines) > 1 else lines
    return " → ".join(format(_value(line, metric), form) for line in both)


def constant(steps: Sequence[Line], metric: str) -> float | None:
    """The value of a metric that was recorded at every step and never changed; None otherwise."""
    values = {line.get(metric) for line in steps}
    return values.pop() if len(values) == 1 else None


def phase_totals(run: Run) -> list[Fact]:
    """Total time of each recorded phase of the steps, with its share; evaluations are separate."""
    steps = run.steps()
    totals = {
        phase: _sum(known, f"timing_s/{phase}")
        for phase in phases(steps)
        if (known := recorded(steps, f"timing_s/{phase}"))
    }
    total = _sum(recorded(steps, "timing_s/step"), "timing_s/step")
    if total:
        totals["other"] = max(0.0, total - sum(totals.values()))
    base = sum(totals.values()) or 1.0
    facts = [Fact(name, duration(value), f"{value / base:.0%}") for name, value in totals.items()]
    if known := recorded(run.lines, "timing_s/eval"):
        facts.append(Fact("evaluations", duration(_sum(known, "timing_s/eval")), "not part of the steps"))
    return facts


def phases(steps: Sequence[Line]) -> tuple[str, ...]:
    """Phases that a step consists of. Generation that overlaps the update counts by the wait for it only."""
    return ("wait" if recorded(steps, "timing_s/wait") else "generate", "update", "sync")


def recorded(lines: Sequence[Line], metric: str) -> list[Line]:
    """Lines with a finite value of a metric."""
    return [line for line in lines if line.get(metric) is not None]


def _sum(lines: Sequence[Line], metric: str) -> float:
    return sum(_value(line, metric) for line in lines)


def _value(line: Line, name: str) -> float:
    """A value that must be there; a value that was not finite was recorded as null, and is NaN here."""
    value = line[name]
    return math.nan if value is None else value


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
