"""Metrics of runs that are compared with each other."""

from typing import Any

CLOCKED = ("timing_s/", "images_per_s", "rollout/idle_share")


def without_durations(line: dict[str, Any]) -> dict[str, Any]:
    """The metrics of a step that two equal runs have in common."""
    return {name: value for name, value in line.items() if not name.startswith(CLOCKED)}
