"""Defaults of an algorithm, and what they say of settings: names, groups and types."""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from verl_omni.settings_schema import engine_settings
from verl_omni.settings_schema.declarations import SETTINGS, may_be_null, of_evaluations, out_of_range
from verl_omni.settings_schema.reference_settings import read_yaml
from verl_omni.settings_schema.setting import Kind, fits, is_number, plain_value, refused_type

MISSING = "???"  # the default of a setting that must be given
_FILES = files("verl_omni.trainer.config")
_COMMON = "diffusion_trainer.yaml"
_REFERENCE = re.compile(r"\$\{([\w.]+)\}")
_CHECKED_ELSEWHERE = "algorithm.rollout_correction."  # where the message has specific advice
_ENGINE = f"{engine_settings.GROUP}."


@dataclass(frozen=True, slots=True)
class Layout:
    """Settings of one algorithm.

    Attributes:
        names: of settings and groups, the engine's settings included.
        groups: groups, outer ones first, and whether each is empty by default: its keys are the user's.
        kinds: types of the settings whose values are checked by type.
    """

    names: Collection[str]
    groups: Mapping[str, bool]
    kinds: Mapping[str, Kind]

    def wrong_group(self, name: str, value: Any) -> str | None:
        """What is wrong with the value of a group; None: nothing. An empty group may be null."""
        if name not in self.groups or isinstance(value, dict) or (value is None and self.groups[name]):
            return None
        return f"must be a group of settings, not {plain_value(value)}"

    def wrong_type(self, name: str, value: Any) -> str | None:
        """What is wrong with the type of a value; None: nothing, or it is not checked.

        Args:
            value: as in YAML: lists and mappings are Python's.
        """
        engine_name = name.removeprefix(_ENGINE)
        if engine_name != name and engine_name in engine_settings.SETTINGS and value is not None:
            return _wrong_engine_value(engine_name, value)
        kind = self.kinds.get(name)
        if kind is None or fits(kind, value):
            return None
        if may_be_null(name) and (value is None or (kind is Kind.PATHS and value in ("", []))):
            return None
        advice = f"{kind.value}, such as {SETTINGS[name].advice}" if kind is Kind.PAIR else kind.value
        return refused_type(value, advice)

    def wrong_value(self, name: str, value: Any) -> str | None:
        """What is wrong with the type or range of a value; None: nothing."""
        return self.wrong_group(name, value) or self.wrong_type(name, value) or out_of_range(name, value)


@cache
def algorithms() -> tuple[str, ...]:
    """Names of the algorithms of this package: each has a file with its defaults."""
    names = (file.name for file in _FILES.joinpath("loss").iterdir())
    return tuple(sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml")))


def algorithm_defaults(loss: str) -> dict[str, Any]:
    """Defaults that an algorithm of this package has in place of the common ones, or besides them."""
    values: dict[str, Any] = _read(f"loss/{loss}.yaml")
    return values


def loss_defaults(loss: str) -> dict[str, Any]:
    """Defaults of the settings `actor_rollout_ref.actor.diffusion_loss` of an algorithm of this package."""
    values: dict[str, Any] = algorithm_defaults(loss)["actor_rollout_ref"]["actor"]["diffusion_loss"]
    return values


def defaults(own: Mapping[str, Any]) -> dict[str, Any]:
    """Defaults of all settings. References to other settings are not resolved.

    Args:
        own: the algorithm's.
    """
    common = _read(_COMMON)
    del common["defaults"], common["hydra"]
    return _merged(common, own)


@cache
def common_defaults() -> Mapping[str, Any]:
    """Defaults of the settings and groups that do not depend on the algorithm, by name."""
    return dict(flat_settings(defaults({})))


def default_of(name: str) -> Any:
    """The default of a setting, or of a group, that does not depend on the algorithm."""
    return common_defaults()[name]


@cache
def default_algorithm() -> str:
    """The algorithm of a run that names none."""
    _, selected = _read(_COMMON)["defaults"]
    return str(selected["loss"])


@cache
def layout(loss: str) -> Layout:
    """Settings of an algorithm of this package."""
    return layout_of(defaults(algorithm_defaults(loss)))


def layout_of(values: Mapping[str, Any]) -> Layout:
    """Settings with given defaults, as `defaults` returns them."""
    flat = dict(flat_settings(values))
    kinds = {setting.name: setting.kind for setting in SETTINGS.values() if setting.kind is not None}
    for name in flat:
        is_checked = not (name in SETTINGS and SETTINGS[name].values) and not name.startswith(_CHECKED_ELSEWHERE)
        if is_checked and name not in kinds and (kind := _kind(resolved_default(flat, name))):
            kinds[name] = kind
    kinds |= {evaluated: kind for name, kind in kinds.items() if (evaluated := of_evaluations(name))}
    engine = [f"{_ENGINE}{name}" for name in engine_settings.SETTINGS]
    groups = {name: not value for name, value in flat.items() if isinstance(value, dict)}
    return Layout(dict.fromkeys([*flat, *engine]).keys(), groups, kinds)


@cache
def common_layout() -> Layout:
    """Settings that all algorithms have, each with its type if they agree on it."""
    first, *others = (layout(loss) for loss in algorithms())
    kinds = {name: kind for name, kind in first.kinds.items() if all(entry.kinds.get(name) is kind for entry in others)}
    names = [name for name in first.names if all(name in entry.names for entry in others)]
    groups = {name: empty for name, empty in first.groups.items() if name in names}
    return Layout(dict.fromkeys(names).keys(), groups, kinds)


@cache
def names_of_algorithms() -> frozenset[str]:
    """Names of the settings that at least one algorithm of this package has."""
    return frozenset(name for loss in algorithms() for name in layout(loss).names)


def _wrong_engine_value(name: str, value: Any) -> str | None:
    try:
        engine_settings.typed(name, value)
    except ValueError as error:
        return str(error)
    return None


def _read(name: str) -> Any:
    return read_yaml(_FILES.joinpath(name).read_text(encoding="utf-8"))


def _merged(values: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(values)
    for key, value in own.items():
        inner = merged.get(key)
        merged[key] = _merged(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return merged


def flat_settings(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Settings and groups by name, each group before what is in it."""
    for key, value in values.items():
        yield f"{prefix}{key}", value
        if isinstance(value, dict):
            yield from flat_settings(value, f"{prefix}{key}.")


def resolved_default(flat: Mapping[str, Any], name: str) -> Any:
    """The default of a setting, or of the one that it refers to."""
    value = flat.get(name)
    match = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
    return resolved_default(flat, match[1]) if match else value


def _kind(default: Any) -> Kind | None:
    if isinstance(default, bool):
        return Kind.SWITCH
    if isinstance(default, int):
        return Kind.WHOLE
    return Kind.NUMBER if is_number(default) else None
