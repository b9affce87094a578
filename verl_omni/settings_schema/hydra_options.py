"""PURE: options of Hydra in a trainer's command line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

SHORT = {"-cn": "--config-name", "-cp": "--config-path"}


def joined_options(arguments: Iterable[str]) -> Iterator[str]:
    """The arguments, with each option and its separate value joined into one argument: `OPTION=VALUE`."""
    rest = iter(arguments)
    for each in rest:
        option = SHORT.get(each, each)
        yield f"{option}={next(rest, '')}" if option in SHORT.values() else each
