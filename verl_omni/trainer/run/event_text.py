"""Text of the events of a run, for the terminal."""

from collections.abc import Mapping
from typing import Any

# Metrics in the line of a step, with their label and format.
SHOWN = (
    ("reward/mean", "reward", ".4g"),
    ("val/reward/mean", "held-out reward", ".4g"),
    ("actor/grad_norm", "gradient norm", ".3g"),
    ("weights/version", "weights", "d"),
    ("timing_s/step", "seconds", ".1f"),
)


def format_event(event: Mapping[str, Any]) -> str:
    """One line for an event of `RunFolder`, without a newline."""
    match event["event"]:
        case "start" if event["resumed_from"] is not None:
            return f"resuming after step {event['resumed_from']} of {event['total_steps']}"
        case "start":
            return f"training {event['total_steps']} steps"
        case "phase":
            return str(event["text"])
        case "step":
            # None stands for a metric that was not finite.
            measured = [f"{name} {event[key]:{form}}" for key, name, form in SHOWN if event.get(key) is not None]
            return f"step {event['step']}: " + ", ".join(measured)
        case "checkpoint":
            return f"saved step {event['step']} in {event['path']}"
        case "adapter":
            return f"saved the adapter of step {event['step']} in {event['path']}"
        case "output" if event["step"] is None:
            return f"sent the report to {event['url']}"
        case "output":
            return f"sent the results of step {event['step']} to {event['url']}"
        case "done":
            return f"done after step {event['step']}; the report is {event['report']}"
        case kind:  # warning, error, stopped
            return f"{kind}: {event['message']}"
