"""PURE: an event of the run as a line for whoever reads the trainer's output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# What a line shows of a step: metric, how it is called there, and its format.
SHOWN = (
    ("reward/mean", "reward", ".4g"), ("val/reward/mean", "held-out reward", ".4g"),
    ("actor/grad_norm", "gradient norm", ".3g"), ("weights/version", "weights", "d"),
    ("timing_s/step", "seconds", ".1f"),
)  # fmt: skip


def format_event(event: Mapping[str, Any]) -> str:
    """One line, without its end. What each event holds is in `RunFolder`."""
    match event["event"]:
        case "start" if event["resumed_from"] is not None:
            return f"going on after step {event['resumed_from']} of {event['total_steps']}"
        case "start":
            return f"training {event['total_steps']} steps"
        case "phase":
            return str(event["text"])
        case "step":
            return f"step {event['step']}: " + ", ".join(_figures(event))
        case "checkpoint":
            return f"saved step {event['step']} in {event['path']}"
        case "done":
            return f"done after step {event['step']}; the report is {event['report']}"
        case kind:  # warning, error, stopped
            return f"{kind}: {event['message']}"


def _figures(event: Mapping[str, Any]) -> list[str]:
    """Those that are there; one that was not finite is None."""
    return [f"{name} {event[metric]:{form}}" for metric, name, form in SHOWN if event.get(metric) is not None]
