"""PURE: checks of overrides, without the trainer."""

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, ClassVar

from verl_omni.settings_schema import engine_settings
from verl_omni.settings_schema.declarations import SETTINGS, field_of
from verl_omni.settings_schema.layout import (
    common_layout,
    default_algorithm,
    flat_settings,
    layout,
    names_of_algorithms,
)
from verl_omni.settings_schema.reference_settings import Rejected, WithoutEffect, find_rule, target_of
from verl_omni.settings_schema.setting import refused_choice
from verl_omni.settings_schema.setting_names import describe_unknown, describe_unknown_of_evaluations, is_in_open_group
from verl_omni.workers.algorithms.registered import ALGORITHMS

CORRECTION = "algorithm.rollout_correction"
ENGINE = engine_settings.GROUP
BYPASS = f"{CORRECTION}.bypass_mode"


def setting_here(name: str) -> str:
    """The setting that has the value of an override here.

    Settings of the engine may be spelled with hyphens, and some of the reference have other names.
    """
    return target_of(engine_settings.full_name(name))


def describe_reserved(name: str) -> str | None:
    """Why an override may not set `name`, whichever trainer runs; None if it may."""
    owner = field_of(setting_here(name))
    return f"{name} is reserved: {owner} sets it" if owner else None


def describe_unsupported(name: str, value: str, loss: str | None) -> str | None:
    """Why the project's trainer refuses the name or the value of `<name>=<value>`; None if it refuses neither.

    Hydra's marks before the name, `+` and `++`, change nothing.

    Args:
        loss: the trainer's name of the algorithm; None if it is not known, or one of the user's.
    """
    name = engine_settings.full_name(name)
    if name == ENGINE and value.lstrip().startswith("{"):
        inner = (describe_unsupported(f"{ENGINE}.{setting}", "null", loss) for setting in _names_in(value))
        return next((text for text in inner if text), None)
    known = layout(loss or default_algorithm()).names
    has_rule = find_rule(name) is not None  # such as for a name of the reference that only null may have
    if not has_rule and (text := describe_unknown_of_evaluations(name, known)):
        return f"{name}: {text}"
    if has_rule or name in known or name in SETTINGS:
        return _describe_value(name, value, loss)
    if _is_open(name) or name in names_of_algorithms():
        return None  # the trainer names a setting that this algorithm does not read
    if name.startswith(f"{ENGINE}."):
        return engine_settings.describe_unknown(name.removeprefix(f"{ENGINE}.").partition(".")[0])
    return f"{name}: {describe_unknown(name, known)}"


def limits_older_samples(loss: str | None) -> bool:
    """Whether a loss can take its ratio to the policy that generated a sample (`BYPASS`), and clip it.

    Args:
        loss: the trainer's name of the algorithm; None if it is one of the user's.
    """
    return loss is not None and describe_unsupported(BYPASS, "true", loss) is None


def has_no_effect(name: str) -> bool:
    """Whether a setting of the reference does nothing here."""
    return name not in common_layout().names and isinstance(find_rule(setting_here(name)), WithoutEffect)


def _is_open(name: str) -> bool:
    """Whether the user chooses the name: in an open group, but for the engine's settings, whose names are known."""
    if name.startswith(f"{ENGINE}."):
        setting, dot, _ = name.removeprefix(f"{ENGINE}.").partition(".")
        return bool(dot) and setting in engine_settings.SETTINGS and engine_settings.SETTINGS[setting].kind is dict
    return is_in_open_group(name)


def _names_in(mapping: str) -> Iterator[str]:
    """Names in the text of a mapping, not those in mappings inside it."""
    text = mapping.strip().removeprefix("{").removesuffix("}")
    while (flat := re.sub(r"\{[^{}]*\}", "", text)) != text:
        text = flat
    yield from re.findall(r"(?:^|,)\s*([A-Za-z_][A-Za-z0-9_-]*)\s*:", text)


def _describe_value(name: str, value: str, loss: str | None) -> str | None:
    """Why a value is refused, alone or with the algorithm, in the trainer's words."""
    setting = target_of(name)
    if "${" in value:  # the value of another setting
        return None
    parsed = read_value(value)
    known = layout(loss or default_algorithm())
    if parsed is None and known.groups.get(setting):  # null is an empty group to the trainer
        return None
    accepted, advice = _accepted(setting)
    wrong = known.wrong_type(setting, parsed) if setting.startswith(f"{ENGINE}.") else None
    if text := wrong or (accepted and known.wrong_group(setting, parsed)):
        return f"{name}: {text}"
    if accepted and not Rejected(accepted, advice).accepts(parsed):
        return f"{name}: {refused_choice(parsed, accepted, advice)}"
    if loss is None or known.wrong_value(setting, parsed):  # `find_wrong_values` names that one
        return None
    return ALGORITHMS[loss].conflict(setting, parsed, loss)


def _accepted(setting: str) -> tuple[tuple[Any, ...], str]:
    """The only values of a setting, and why not others; none if it takes all of its type."""
    if setting in SETTINGS and SETTINGS[setting].values:
        return SETTINGS[setting].values, SETTINGS[setting].advice
    rule = find_rule(setting)
    return (rule.accepted, rule.advice) if isinstance(rule, Rejected) else ((), "")


def find_wrong_values(given: Mapping[str, Any], loss: str | None) -> Iterator[tuple[str, str]]:
    """Settings with a value of another type or out of its range, each with what is wrong.

    Args:
        given: values by the setting's name here.
        loss: the trainer's name of the algorithm, which does not read the settings of others; None: one of the user's.
    """
    known = common_layout() if loss is None else layout(loss)
    for name, value in given.items():
        is_of_others = loss is not None and name not in known.names and name in names_of_algorithms()
        if not is_of_others and (text := known.wrong_value(name, value)):
            yield name, text


def find_repeated(given: Sequence[tuple[str, str]]) -> Iterator[tuple[int, int, str]]:
    """Overrides of a setting that an earlier one sets too, of which the trainer would read the last alone.

    Args:
        given: name and value of each override, as they are written.

    Yields:
        Place of the override, place of the earlier one, and the setting.
    """
    places: dict[str, int] = {}
    for index, (name, value) in enumerate(given):
        settings = list(_settings_in(setting_here(name), value))
        for setting in settings:
            same = (known for known in places if _overlap(setting, known))
            if (earlier := next(same, None)) is not None:
                yield index, places[earlier], setting
                break
        places |= dict.fromkeys(settings, index)


def _settings_in(name: str, value: str) -> Iterator[str]:
    """Full names of the settings that an override sets; several if its value is a mapping."""
    mapping = read_value(value)
    if not isinstance(mapping, dict) or not mapping:
        yield name
        return
    for setting, inner in flat_settings(mapping, f"{name}."):
        if not isinstance(inner, dict) or not inner:
            yield setting_here(setting)


def _overlap(one: str, other: str) -> bool:
    """Whether two names are the same setting, or a group and a setting in it."""
    return one == other or one.startswith(f"{other}.") or other.startswith(f"{one}.")


def read_value(text: str) -> Any:
    """The value of an override, as far as it is checked: a mapping that only Hydra can read is an empty one."""
    if not text.strip():
        return ""
    value = parse_value(text)
    if text.lstrip().startswith("{"):
        return value if isinstance(value, dict) else {}
    return value


def parse_value(text: str) -> Any:
    """A value as the trainer reads it: YAML's, but what is a number, a boolean or null, is as with Hydra."""
    import yaml  # most jobs have no overrides

    with contextlib.suppress(yaml.YAMLError, ValueError):  # the second of a tag, such as `!!int x`
        return yaml.load(text, Loader=_loader())
    return text


@cache
def _loader() -> Any:
    """YAML of plain values, in which `no`, 010, 12:30 and 2026-11-29 are texts, and 1e-5 is a number."""
    import yaml

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}

    digits = "[0-9](_?[0-9])*"
    integer = "(0|[1-9](_?[0-9])*)"
    power = f"([eE][-+]?{digits})"
    for kind, pattern, first in (
        ("bool", r"(?i:true|false)", "tTfF"),
        ("int", f"[-+]?{integer}", "-+0123456789"),
        (
            "float",
            rf"[-+]?(({integer}\.({digits})?|\.{digits}){power}?|{integer}{power}|(?i:inf|nan))",
            "-+.0123456789iInN",
        ),
        ("null", r"(?i:null)|~|", ["n", "N", "~", ""]),
    ):
        Loader.add_implicit_resolver(f"tag:yaml.org,2002:{kind}", re.compile(f"({pattern})$"), list(first))
    return Loader
