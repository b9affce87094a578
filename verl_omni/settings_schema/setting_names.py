"""PURE: names of settings in a command line: which exist, the nearest one for a misspelt name, options of Hydra."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Iterator

from verl_omni.settings_schema.declarations import OPEN_GROUPS, ROLLOUT
from verl_omni.settings_schema.reference_settings import copied_group

OPTIONS = {"-cn": "--config-name", "-cp": "--config-path"}  # of Hydra, with a value


def joined_options(arguments: Iterable[str]) -> Iterator[str]:
    """The arguments, with each option of Hydra and its separate value joined into one argument: `OPTION=VALUE`."""
    remaining = iter(arguments)
    for argument in remaining:
        option = OPTIONS.get(argument, argument)
        yield f"{option}={next(remaining, '')}" if option in OPTIONS.values() else argument


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
    of_samples = (setting for setting in known if setting.startswith((f"{ROLLOUT}.pipeline.", f"{ROLLOUT}.algo.")))
    # The settings of evaluations: their groups are empty by default.
    of_evaluations = (f"{ROLLOUT}.val_kwargs.{setting.removeprefix(f'{ROLLOUT}.')}" for setting in of_samples)
    near = nearest_setting(name, [*known, *of_evaluations])
    return "unknown setting" + (f"; did you mean {near}?" if near else "")


def nearest_setting(name: str, valid: Iterable[str]) -> str | None:
    """The most similar name with dots whose last part is similar too, or one with the same last part."""
    last = name.rpartition(".")[2]
    parts = {setting: setting.rpartition(".")[2] for setting in sorted(valid)}
    similar = (
        setting
        for setting in difflib.get_close_matches(name, parts, n=10, cutoff=0.5)
        if difflib.SequenceMatcher(None, last, parts[setting]).ratio() >= 0.6
    )
    return next(similar, next((setting for setting, part in parts.items() if part == last), None))
