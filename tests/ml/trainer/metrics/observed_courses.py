"""The warnings that an observer gives in the course of a run."""

from collections.abc import Callable, Sequence
from typing import Any


def warnings(
    state: Any, observe: Callable[[Any, Any], tuple[Any, str | None]], lines: Sequence[Any]
) -> list[tuple[int, str]]:
    """The place of each warning about these metrics of steps, and its text."""
    warned = []
    for place, line in enumerate(lines):
        state, message = observe(state, line)
        if message is not None:
            warned.append((place, message))
    return warned
