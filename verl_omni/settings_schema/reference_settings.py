"""PURE: settings of the reference that this trainer's configuration does not have, and what becomes of each.

The list is `reference_settings.yaml` in the same folder.
"""

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

GROUP = ".*"  # at the end of a name: the group and everything in it


@dataclass(frozen=True, slots=True)
class Renamed:
    """The value goes to the setting `name`."""

    name: str


@dataclass(frozen=True, slots=True)
class Copied:
    """The reference derives it from the setting `name`; it must have that setting's value."""

    name: str


@dataclass(frozen=True, slots=True)
class WithoutEffect:
    """Accepted with any value."""

    reason: str


@dataclass(frozen=True, slots=True)
class Rejected:
    """Accepted only with a value that asks for nothing.

    Attributes:
        accepted: those values.
        advice: what to write instead, or why there is nothing.
    """

    accepted: tuple[Any, ...]
    advice: str

    def accepts(self, value: Any) -> bool:
        """Whether `value` asks for nothing. False is not 0."""
        return any(value == choice and isinstance(value, bool) == isinstance(choice, bool) for choice in self.accepted)


Rule = Renamed | Copied | WithoutEffect | Rejected


def read_yaml(text: str) -> Any:
    """The content of one of the schema's files, by libyaml where it is there: that is ten times as fast."""
    import yaml  # most commands of drl need none of the files

    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


@cache
def rules() -> dict[str, Rule]:
    """All rules, by the name of a setting or of a group, which ends with `.*`."""
    source = files("verl_omni.settings_schema").joinpath("reference_settings.yaml").read_text(encoding="utf-8")
    lists = read_yaml(source)
    by_name: dict[str, Rule] = {name: Renamed(target) for name, target in lists["renamed"].items()}
    by_name |= {name: Copied(target) for name, target in lists["copies"].items()}
    for entry in lists["without_effect"]:
        by_name |= dict.fromkeys(entry["settings"], WithoutEffect(entry["reason"]))
    for entry in lists["refused"]:
        by_name |= dict.fromkeys(entry["settings"], Rejected(tuple(entry["accepted"]), entry["advice"]))
    return by_name


def find_rule(name: str) -> Rule | None:
    """The rule of the longest name that matches; None if the reference has no such setting, or it exists here."""
    known = rules()
    if name in known:
        return known[name]
    parts = name.split(".")
    groups = (".".join(parts[:count]) + GROUP for count in range(len(parts), 0, -1))
    return next((known[group] for group in groups if group in known), None)


def target_of(name: str) -> str:
    """The setting that has the value of a setting of the reference here: often the same."""
    rule = rules().get(name)
    return rule.name if isinstance(rule, Renamed | Copied) else name


def copied_group(name: str) -> str | None:
    """The group of which the group `name` has copies, e.g. `algorithm.rollout_correction`; None: it has none."""
    targets = (
        rule.name.rpartition(".")[0]
        for known, rule in rules().items()
        if isinstance(rule, Copied) and known.rpartition(".")[0] == name
    )
    return next(targets, None)
