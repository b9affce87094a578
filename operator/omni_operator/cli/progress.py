"""PURE: the events of a run -> what is known about it, and the words for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

PHASES = ("generate", "reward", "update", "sync")


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Mean reward of the held-out prompts, its standard error, and the share of right pictures where it is told."""

    step: int
    mean: float
    stderr: float | None
    pictures: int | None
    right: float | None


@dataclass(frozen=True, slots=True)
class Known:
    """What the events so far say.

    Attributes:
        phase: what the run is busy with, until its first step.
        step: last finished step. total: None until the run has started.
        last: the numbers of that step.
        first_evaluation, last_evaluation: of the events seen; a resumed run has earlier ones in its metrics.
        failure, stopped: why the run ended, where it said so.
    """

    phase: str = "starting the trainer"
    step: int = 0
    total: int | None = None
    resumed_from: int | None = None
    last: Mapping[str, Any] | None = None
    first_evaluation: Evaluation | None = None
    last_evaluation: Evaluation | None = None
    checkpoint: str | None = None
    failure: str | None = None
    stopped: str | None = None
    done: bool = False
    report: str | None = None


def after(known: Known, event: Mapping[str, Any]) -> Known:
    """What is known after one more event; an event of an unknown kind changes nothing."""
    match event.get("event"):
        case "start":
            resumed = event.get("resumed_from")
            return replace(known, total=event.get("total_steps"), resumed_from=resumed, step=resumed or 0)
        case "phase":
            return replace(known, phase=str(event.get("text", "")))
        case "step":
            found = evaluation(event)
            return replace(
                known,
                step=int(event["step"]),
                last=event if "reward/mean" in event else known.last,
                first_evaluation=known.first_evaluation or found,
                last_evaluation=found or known.last_evaluation,
            )
        case "checkpoint":
            return replace(known, checkpoint=str(event.get("path", "")))
        case "error":
            kind = event.get("kind")
            return replace(known, failure=f"{kind}: {event.get('message')}" if kind else str(event.get("message")))
        case "stopped":
            return replace(known, stopped=str(event.get("message", "")))
        case "done":
            return replace(known, done=True, report=event.get("report"))
        case _:
            return known


def evaluation(line: Mapping[str, Any]) -> Evaluation | None:
    """The evaluation in a step's line, if it holds one."""
    mean = line.get("val/reward/mean")
    if mean is None:
        return None
    return Evaluation(
        int(line["step"]), float(mean), line.get("val/reward/stderr"), line.get("val/n"), line.get("val/correct/mean")
    )


def announcement(event: Mapping[str, Any]) -> str | None:
    """The line that an event other than a step's numbers is worth, for a person who reads along."""
    match event.get("event"):
        case "start" if event.get("resumed_from") is not None:
            return f"going on from the checkpoint of step {event['resumed_from']} of {event.get('total_steps')}"
        case "step":
            found = evaluation(event)
            return f"held-out reward {evaluated(found)} after step {found.step}" if found else None
        case "warning":
            return f"warning: {event.get('message')}"
        case _:
            return None


def evaluated(found: Evaluation) -> str:
    """`0.500 ± 0.035, 51.5% right`; the spread is the standard error of the mean."""
    return spread(found.mean, found.stderr) + (f", {found.right:.1%} right" if found.right is not None else "")


def step_line(event: Mapping[str, Any], total: int | None) -> str:
    """One line for one training step: the numbers that a run is judged by."""
    width = len(str(total)) if total else 1
    parts = [f"step {event['step']:>{width}}/{total if total is not None else '?'}", reward(event)]
    if (speed := event.get("images_per_s")) is not None:
        parts.append(f"{number(speed)} images/s")
    parts += [f"{name} {seconds(event[key])}" for name in PHASES if event.get(key := f"timing_s/{name}") is not None]
    parts.append(f"weights v{event.get('weights/version', '?')}")
    if event.get("eta_s") is not None:
        parts.append(f"ETA {duration(event['eta_s'])}")
    return "  ".join(parts)


def reward(event: Mapping[str, Any]) -> str:
    """`reward 0.43 ± 0.21`; the spread is the standard deviation between pictures."""
    mean = event.get("reward/mean")
    return f"reward {spread(mean, event.get('reward/std')) if mean is not None else 'not finite'}"


def spread(mean: float, deviation: float | None) -> str:
    """`0.43 ± 0.21`, both with as many decimals as the mean is worth."""
    text = number(mean)
    if deviation is None:
        return text
    decimals = len(text.partition(".")[2]) if "e" not in text else None
    plain = f"{deviation:.{decimals}f}" if decimals is not None else ""
    return f"{text} ± {plain if plain.strip('0.') or deviation == 0 else number(deviation)}"


def number(value: float) -> str:
    """Three digits that count: `0.434`, `12.3`, `1230`."""
    return f"{value:#.3g}".rstrip(".") if abs(value) < 999.5 else f"{value:.0f}"


def seconds(value: float) -> str:
    """`0.04 s`, `5.2 s`, `73 s`."""
    return f"{value:.2f} s" if value < 1 else f"{value:.1f} s" if value < 10 else f"{value:.0f} s"


def duration(value: float) -> str:
    """`45s`, `12m 30s`, `3h 05m`."""
    minutes, rest = divmod(round(value), 60)
    if minutes >= 60:
        return f"{minutes // 60}h {minutes % 60:02d}m"
    return f"{minutes}m {rest:02d}s" if minutes else f"{rest}s"
