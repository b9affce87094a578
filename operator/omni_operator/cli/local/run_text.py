"""PURE: the text shown for events and metrics of a run."""

from collections.abc import Mapping
from typing import Any

from .run_state import Evaluation, evaluation

PHASES = ("generate", "reward", "update", "sync")


def announcement(event: Mapping[str, Any]) -> str | None:
    """The line to show for an event other than the metrics of a step, or None."""
    match event.get("event"):
        case "start" if event.get("resumed_from") is not None:
            return f"resuming from the checkpoint of step {event['resumed_from']} of {event.get('total_steps')}"
        case "step":
            held_out = evaluation(event)
            return f"held-out reward {evaluation_text(held_out)} after step {held_out.step}" if held_out else None
        case "warning":
            return f"warning: {event.get('message')}"
        case _:
            return None


def evaluation_text(found: Evaluation) -> str:
    """`0.500 ± 0.035, 51.5% right`: mean and its standard error."""
    return spread(found.mean, found.stderr) + (f", {found.correct:.1%} right" if found.correct is not None else "")


def step_line(event: Mapping[str, Any], total: int | None) -> str:
    """One line with the main metrics of a training step."""
    width = len(str(total)) if total else 1
    parts = [f"step {event['step']:>{width}}/{total if total is not None else '?'}", *learning_texts(event)]
    if (speed := event.get("images_per_s")) is not None:
        parts.append(f"{number(speed)} images/s")
    parts += [f"{name} {seconds(event[key])}" for name in PHASES if event.get(key := f"timing_s/{name}") is not None]
    parts.append(f"weights v{event.get('weights/version', '?')}")
    if event.get("eta_s") is not None:
        parts.append(f"ETA {duration(event['eta_s'])}")
    return "  ".join(parts)


def learning_texts(event: Mapping[str, Any]) -> list[str]:
    """The reward of a step; of one on pairs of a data set its loss and, once it learned, the share that is right."""
    if "reward/mean" in event:
        mean = event["reward/mean"]
        return [f"reward {spread(mean, event.get('reward/std')) if mean is not None else 'not finite'}"]
    texts = [f"loss {number(loss)}"] if (loss := event.get("actor/loss")) is not None else []
    if (accuracy := event.get("actor/accuracy")) is not None and event.get("actor/margin") != 0:
        texts.append(f"{accuracy:.1%} of the pairs right")
    return texts


def spread(mean: float, deviation: float | None) -> str:
    """`0.43 ± 0.21`, both with the decimals of the mean."""
    text = number(mean)
    if deviation is None:
        return text
    decimals = len(text.partition(".")[2]) if "e" not in text else None
    plain = f"{deviation:.{decimals}f}" if decimals is not None else ""
    return f"{text} ± {plain if plain.strip('0.') or deviation == 0 else number(deviation)}"


def number(value: float) -> str:
    """Three significant digits: `0.434`, `12.3`, `1230`."""
    return f"{value:#.3g}".rstrip(".") if abs(value) < 999.5 else f"{value:.0f}"


def seconds(value: float) -> str:
    """`0.04 s`, `5.2 s`, `73 s`."""
    return f"{value:.2f} s" if value < 1 else f"{value:.1f} s" if value < 10 else f"{value:.0f} s"


def duration(value: float) -> str:
    """`45s`, `12m 30s`, `3h 05m`."""
    minutes, seconds = divmod(round(value), 60)
    if minutes >= 60:
        return f"{minutes // 60}h {minutes % 60:02d}m"
    return f"{minutes}m {seconds:02d}s" if minutes else f"{seconds}s"
