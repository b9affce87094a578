"""PURE: names of settings in a command line: which exist, the nearest one for a misspelt name, options of Hydra."""

import difflib
from collections.abc import Collection, Iterable, Iterator

from verl_omni.settings_schema.declarations import EVALUATIONS, OF_TRAINING, OPEN_GROUPS, of_evaluations
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
    return _unknown(nearest_setting(name, [*known, *_names_of_evaluations(known)]))


def _unknown(near: str | None) -> str:
    return "unknown setting" + (f"; did you mean {near}?" if near else "")


def describe_unknown_of_evaluations(name: str, known: Collection[str]) -> str | None:
    """Message about a name below `rollout.val_kwargs` that no evaluation has; None: it is of another kind, or has one.

    Args:
        known: names of settings and groups, also of training samples.
    """
    if not name.startswith((f"{EVALUATIONS}.pipeline.", f"{EVALUATIONS}.algo.")):
        return None
    names = list(_names_of_evaluations(known))
    if name in names:
        return None
    if name.rpartition(".")[2] in OF_TRAINING:
        return "unknown setting: it is of training samples only"
    return _unknown(nearest_setting(name, names))


def _names_of_evaluations(known: Iterable[str]) -> Iterator[str]:
    """Names of evaluations' settings: their groups are empty by default, so the names of training samples count."""
    for setting in known:
        if (name := of_evaluations(setting)) and not name.rpartition(".")[2].startswith("_"):
            yield name


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
