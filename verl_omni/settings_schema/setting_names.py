"""PURE: names of settings in a command line: which exist, the nearest one for a misspelt name, options of Hydra."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Iterator

from verl_omni.settings_schema.declarations import OPEN_GROUPS, ROLLOUT
from verl_omni.settings_schema.reference_settings import copied_group

OPTIONS = {"-cn": "--config-name", "-cp": "--config-path"}  # of Hydra, with a value


def joined_options(arguments: Iterable[str]) -> Iterator[str]:
    """The arguments, with each option of Hydra and its separate value joined into one argument: `OPTION=VALUE`."""
    rest = iter(arguments)
    for each in rest:
        option = OPTIONS.get(each, each)
        yield f"{option}={next(rest, '')}" if option in OPTIONS.values() else each


def is_in_open_group(name: str) -> bool:
    """Whether the user chooses the name of a setting."""
    return any(name.startswith(f"{group}.") for group in OPEN_GROUPS)


def describe_unknown(name: str, known: Collection[str]) -> str:
    """Message about a name that no setting has, with what to write if that is known.

    Args:
        known: names of settings and groups.
    """
    for group in (name, name.rpartition(".")[0]):
        if group not in known and (target := copied_group(group)):
            return f"unknown setting; write {target}"
    of_samples = (each for each in known if each.startswith((f"{ROLLOUT}.pipeline.", f"{ROLLOUT}.algo.")))
    # The settings of evaluations: their groups are empty by default.
    of_evaluations = (f"{ROLLOUT}.val_kwargs.{each.removeprefix(f'{ROLLOUT}.')}" for each in of_samples)
    near = nearest_setting(name, [*known, *of_evaluations])
    return "unknown setting" + (f"; did you mean {near}?" if near else "")


def nearest_setting(name: str, valid: Iterable[str]) -> str | None:
    """The most similar name with dots whose last part is similar too, or one with the same last part."""
    last = name.rpartition(".")[2]
    parts = {one: one.rpartition(".")[2] for one in sorted(valid)}
    similar = (
        one
        for one in difflib.get_close_matches(name, parts, n=10, cutoff=0.5)
        if difflib.SequenceMatcher(None, last, parts[one]).ratio() >= 0.6
    )
    return next(similar, next((one for one, part in parts.items() if part == last), None))
