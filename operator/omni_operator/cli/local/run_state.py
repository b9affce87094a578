"""PURE: the state of a run, computed from its events."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Rewards of the held-out prompts at one step.

    Attributes:
        stderr: standard error of the mean. images: how many were scored.
        correct: share of correct images, for scorers that report it.
    """

    step: int
    mean: float
    stderr: float | None
    images: int | None
    correct: float | None


@dataclass(frozen=True, slots=True)
class RunState:
    """Everything that the events so far report.

    Attributes:
        phase: current start-up phase, until the first step.
        step: last finished step. total: None until the run has started.
        last: metrics of that step.
        failure: why the run failed, if the trainer reported it.
    """

    phase: str = "starting the trainer"
    step: int = 0
    total: int | None = None
    last: Mapping[str, Any] | None = None
    failure: str | None = None


def apply_event(state: RunState, event: Mapping[str, Any]) -> RunState:
    """The state after one more event; events of unknown kinds change nothing."""
    match event.get("event"):
        case "start":
            return replace(state, total=event.get("total_steps"), step=event.get("resumed_from") or 0)
        case "phase":
            return replace(state, phase=str(event.get("text", "")))
        case "step":
            has_more = {"reward/mean", "actor/loss"} & event.keys()  # than an evaluation
            return replace(state, step=int(event["step"]), last=event if has_more else state.last)
        case "error":
            return replace(state, failure=str(event.get("message")))
        case _:
            return state


def evaluation(line: Mapping[str, Any]) -> Evaluation | None:
    """The evaluation in the metrics of a step, if there was one."""
    mean = line.get("val/reward/mean")
    if mean is None:
        return None
    return Evaluation(
        int(line["step"]), float(mean), line.get("val/reward/stderr"), line.get("val/n"), line.get("val/correct/mean")
    )
