"""Defaults of typed settings, read from the trainer's settings files, so that each stands in one place.

A field of a settings class whose default is `FROM_FILE` has the default of `trainer/config`, or if it is one of the
reference's that is refused, the value that asks for nothing. Other fields have a default of their own: an object that
is made without the trainer has no machine, model or other settings to derive it from, or the field has no effect.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from verl_omni.settings_schema import layout
from verl_omni.settings_schema.reference_settings import Rejected, rules

Settings = TypeVar("Settings")
FROM_FILE: Any = object()


def with_defaults(group: str) -> Callable[[type[Settings]], type[Settings]]:
    """Decorator of a class before it becomes a dataclass: fields that are `FROM_FILE` get the defaults of a group.

    Args:
        group: name of the settings, e.g. `actor_rollout_ref.actor.optim`.
    """

    def fill(kind: type[Settings]) -> type[Settings]:
        fill_defaults(kind, {name.rpartition(".")[2]: value for name, value in _group(group).items()})
        return kind

    return fill


def fill_defaults(kind: type[Any], defaults: Mapping[str, Any]) -> None:
    """Give fields that are `FROM_FILE` their defaults, as attributes of the class; a list becomes a tuple.

    Raises:
        TypeError: a setting has no default, or one that only the trainer can resolve.
    """
    for name, value in list(vars(kind).items()):
        if value is not FROM_FILE:
            continue
        default = defaults.get(name, layout.MISSING)
        if isinstance(default, dict) or (isinstance(default, str) and default.startswith(("${", layout.MISSING))):
            raise TypeError(f"{kind.__name__}.{name}: trainer/config has no default that a class can have: {default}")
        setattr(kind, name, tuple(default) if isinstance(default, list) else default)


def _group(group: str) -> dict[str, Any]:
    refused = {name: rule.accepted[0] for name, rule in rules().items() if isinstance(rule, Rejected)}
    every = {**refused, **layout.common_defaults()}
    return {name: value for name, value in every.items() if name.rpartition(".")[0] == group}
