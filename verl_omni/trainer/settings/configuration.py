"""Settings of the trainer: Hydra overrides to a checked configuration."""

from __future__ import annotations

import importlib.util
import pickle
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from verl_omni.settings_schema import engine_settings, layout
from verl_omni.settings_schema.declarations import OPEN_GROUPS
from verl_omni.settings_schema.layout import Layout
from verl_omni.settings_schema.reference_settings import (
    Copied,
    Rejected,
    Renamed,
    WithoutEffect,
    find_rule,
)
from verl_omni.settings_schema.setting import plain_value, refused_choice
from verl_omni.settings_schema.setting_names import describe_unknown, is_in_open_group, joined_options
from verl_omni.trainer.settings import (
    cpu_values,
    extension_settings,
    reference_modules,
    registered_names,
    supported_values,
    unused_values,
)
from verl_omni.trainer.settings.extension_settings import EXTERNAL_LIB, default_settings, import_extensions
from verl_omni.workers.algorithms import recipe_lint, registry
from verl_omni.workers.algorithms.other_names import LOSS, resolve
from verl_omni.workers.algorithms.registered import ALGORITHMS

ENGINE = engine_settings.GROUP
_KEY = re.compile(r"^(?P<mark>[+~]{0,2})(?P<key>[^=@]+)(?:=(?P<value>.*)|$)", re.DOTALL)


class SettingsError(ValueError):
    """Invalid settings; the message has one line for each."""


def load(overrides: Sequence[str]) -> DictConfig:
    """Compose the defaults with `overrides`.

    Raises:
        SettingsError: a name is unknown, a value cannot be parsed, is of another kind or is not supported, a required
            setting is missing, or one does not go with the algorithm.
    """
    loss, others = _loss([_spelled(argument) for argument in joined_options(overrides)])
    config = defaults(loss)
    known = _layout(loss, config)
    translated = _translate(others, known.names, loss)
    if unknown := [
        *translated.problems,
        *(line for override in translated.overrides if (line := _unknown(override, known.names))),
    ]:
        # A recipe of a family that is missing has settings of it, which no other value makes work.
        raise SettingsError("\n".join([*registered_names.problems_of(_given(translated.overrides)), *unknown]))
    try:
        _apply(config, [_opened(override) for override in translated.overrides])
        if wrong := list(_wrong_groups(config, known)):
            raise SettingsError("\n".join(wrong))
        _read_engine(config.actor_rollout_ref.rollout)
        names = [match["key"] for override in translated.overrides if (match := _KEY.match(override))]
        if wrong := list(_wrong_types(config, known, names)):
            raise SettingsError("\n".join(wrong))
        _check(config, known.names, translated)
    except (HydraException, OmegaConfBaseException) as error:
        raise SettingsError(str(error)) from error
    return config


def describe_risks(config: DictConfig) -> str:
    """What published runs report as harmful, each with its setting, as `drl validate` prints it; empty: nothing."""
    risks = recipe_lint.find_risks(lambda name: OmegaConf.select(config, name))
    return "; ".join(f"{risk.setting} {risk.text}" for risk in risks)


def _spelled(override: str) -> str:
    """The override with the name of an engine's setting as it is spelled here."""
    match = _KEY.match(override)
    if match is None or not match["key"].startswith(f"{ENGINE}."):
        return override
    value = "" if match["value"] is None else f"={match['value']}"
    return f"{match['mark']}{engine_settings.full_name(match['key'])}{value}"


def _check(config: DictConfig, known: Collection[str], own: _Translated) -> None:
    """Name built-in scorers and data sets for the reference's; refuse values that are missing, or do not go together.

    Raises:
        SettingsError: see `load`.
    """
    reference_modules.use_built_in(config.reward)
    reference_modules.use_own_dataset(config.data)
    _complete_evaluations(config.actor_rollout_ref.rollout)
    if missing := sorted(set(known).intersection(_missing(config))):
        raise SettingsError("\n".join(f"{name}: must be given" for name in missing))
    wrong = [*registry.setting_conflicts(config), *supported_values.find_problems(config, _installed_trackers())]
    if wrong := [*registered_names.find_problems(config), *_differing_copies(config, own.copies), *wrong]:
        raise SettingsError("\n".join(wrong))
    if wrong := list(extension_settings.find_problems(config)):
        raise SettingsError("\n".join(wrong))


def _read_engine(rollout: DictConfig) -> None:
    """Give the engine's settings their types; a batch size among them becomes the rollout's.

    Raises:
        SettingsError: one is unknown, or its value is not supported.
    """
    engine = rollout.engine_kwargs.vllm_omni
    values = OmegaConf.to_container(engine, resolve=True)
    arguments, problems = engine_settings.read(values)  # type: ignore[arg-type]
    if problems:
        raise SettingsError("\n".join(problems))
    defaults = {name: None for name, value in values.items() if value is None and name in engine_settings.SETTINGS}
    rollout.engine_kwargs.vllm_omni = {**defaults, **arguments}
    if engine_settings.BATCH.rpartition(".")[2] in arguments:
        rollout.max_num_seqs = f"${{{engine_settings.BATCH}}}"


def _complete_evaluations(rollout: DictConfig) -> None:
    """Settings of evaluations that are null are as in training; `true_cfg_scale` defaults to their `guidance_scale`."""
    evaluated = rollout.val_kwargs.pipeline
    for name in rollout.pipeline if OmegaConf.is_dict(evaluated) else ():
        if name in evaluated and evaluated[name] is None:
            with open_dict(evaluated):
                del evaluated[name]
    if OmegaConf.is_interpolation(rollout.pipeline, "true_cfg_scale") and OmegaConf.is_dict(evaluated):
        with open_dict(evaluated):
            if "guidance_scale" in evaluated:
                evaluated.setdefault("true_cfg_scale", evaluated.guidance_scale)


@cache
def _installed_trackers() -> frozenset[str]:
    """The packages of trackers that can be imported."""
    packages = (package for package in supported_values.TRACKER_PACKAGES.values() if package is not None)
    return frozenset(package for package in packages if importlib.util.find_spec(package) is not None)


def _wrong_groups(config: DictConfig, known: Layout) -> Iterator[str]:
    """Messages about groups that were replaced by a value that is no group; an empty group that is null becomes one."""
    wrong: list[str] = []
    for name, empty in known.groups.items():
        if name.startswith(tuple(f"{group}." for group in wrong)):
            continue
        value = OmegaConf.select(config, name)
        if empty and value is None:
            OmegaConf.update(config, name, {})
        elif not OmegaConf.is_dict(value):
            wrong.append(name)
            yield f"{name}: {known.wrong_group(name, value)}"


def _wrong_types(config: DictConfig, known: Layout, given: Sequence[str]) -> Iterator[str]:
    """A line for each value of another type, of the settings that overrides give by their own name or their group's."""
    for setting in dict.fromkeys(given):
        for name in known.kinds:
            if name == setting or name.startswith(f"{setting}."):
                value = supported_values.select(config, name)
                if text := known.wrong_type(name, value):
                    yield f"{name}: {text}"


def defaults(loss: str) -> DictConfig:
    """The default settings with an algorithm; interpolations are not resolved."""
    # A user's algorithm may be registered again with other settings; built-in algorithms are files.
    entry = ALGORITHMS[loss]
    if entry.like is not None:
        return _composed(default_settings(loss, entry))
    config: DictConfig = pickle.loads(_files(loss))
    return config


@cache
def _files(loss: str) -> bytes:
    """The settings of an algorithm of this package, pickled: reading them is six times as fast as a deep copy."""
    return pickle.dumps(_composed(layout.algorithm_defaults(loss)))


def _composed(own: Mapping[str, Any]) -> DictConfig:
    """The settings with an algorithm's defaults, as Hydra composes them: unknown names are refused."""
    config = OmegaConf.create(layout.defaults(own))
    OmegaConf.set_struct(config, True)
    return config


def _layout(loss: str, config: DictConfig) -> Layout:
    if ALGORITHMS[loss].like is None:
        return layout.layout(loss)
    return layout.layout_of(OmegaConf.to_container(config, resolve=False))  # type: ignore[arg-type]


def _apply(config: DictConfig, overrides: Sequence[str]) -> None:
    """Apply overrides as Hydra does, which would read the files again: that takes ten times as long.

    Raises:
        SettingsError: one of them is not in Hydra's grammar. Hydra's own errors do not say which.
    """
    parser = OverridesParser.create()
    parsed = []
    for override in overrides:
        try:
            parsed.append(parser.parse_override(override))
        except HydraException as error:
            advice = "write its text in quotes, with a backslash before quotes of the same kind"
            raise SettingsError(f"{override!r} cannot be read ({str(error).splitlines()[0]}): {advice}") from error
    ConfigLoaderImpl.validate_sweep_overrides_legal(parsed, run_mode=RunMode.RUN, from_shell=False)
    ConfigLoaderImpl._apply_overrides_to_config(parsed, config)


def without_effect(
    overrides: Sequence[str], config: DictConfig | None = None, *, has_accelerator: bool = True
) -> dict[str, str]:
    """The settings of the reference among `overrides` that do nothing here, each with the reason.

    Args:
        config: result of `load` for these overrides; with it, settings of other algorithms, and values that change
            nothing, are included.
        has_accelerator: without one, also settings with a value that changes nothing on a CPU.
    """
    values = _given(overrides)
    reasons = {name: rule.reason for name in values if isinstance(rule := find_rule(name), WithoutEffect)}
    if config is not None:
        loss = config.actor_rollout_ref.actor.diffusion_loss.loss_mode
        known = _layout(loss, config).names
        reasons |= {name: f"loss_mode={loss} does not read it" for name in values if _is_of_another_loss(name, known)}
        reasons |= unused_values.find(config, values)
    return reasons if has_accelerator else reasons | cpu_values.find(values)


@dataclass(slots=True)
class _Translated:
    """Overrides without the reference's settings that the configuration does not have.

    Attributes:
        copies: (name, name of the setting that must have the same value, value).
        problems: a message for each that is refused.
    """

    overrides: list[str] = field(default_factory=list)
    copies: list[tuple[str, str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def _translate(overrides: Sequence[str], known: Collection[str], loss: str) -> _Translated:
    translated = _Translated()
    names = [match["key"] for override in overrides if (match := _KEY.match(override))]
    for override in overrides:
        match = _KEY.match(override)
        key, text = (match["key"], match["value"] or "") if match else ("", "")
        if key in (unused_values.LOG_PROBS, unused_values.KL) and unused_values.unneeded(loss, key, _parsed(text)):
            continue
        if match and _is_of_another_loss(key, known):
            continue
        rule = find_rule(key) if match and key not in known else None
        deleted = match is not None and match["mark"].startswith("~")
        if deleted and isinstance(rule, WithoutEffect):
            continue
        if match is None or rule is None or deleted:
            translated.overrides.append(override)
            continue
        match rule:
            case Renamed(name=name):
                translated.overrides.append(f"{name}={text}")
            case Copied(name=name):
                if name not in names:
                    translated.overrides.append(f"{name}={text}")
                translated.copies.append((key, name, _parsed(text)))
            case Rejected(accepted=accepted, advice=advice) if not rule.accepts(_parsed(text)):
                translated.problems.append(f"{key}: {refused_choice(_parsed(text), accepted, advice)}")
    return translated


def _is_of_another_loss(name: str, known: Collection[str]) -> bool:
    """Whether only other algorithms than the one of `known` have a setting: the reference has one section for all."""
    return name not in known and name in layout.names_of_algorithms()


def _given(overrides: Sequence[str]) -> dict[str, Any]:
    """The values of overrides by name, including the entries of a mapping of engine settings."""
    matches = (match for override in overrides if (match := _KEY.match(_spelled(override))))
    values = {match["key"]: _parsed(match["value"] or "") for match in matches}
    inner = values.get(ENGINE)
    engine_values = inner if isinstance(inner, dict) else {}
    return {**{engine_settings.full_name(f"{ENGINE}.{name}"): value for name, value in engine_values.items()}, **values}


def _parsed(text: str) -> Any:
    """A value as Hydra reads it; its text if Hydra cannot."""
    try:
        return OverridesParser.create().parse_override(f"value={text}").value()
    except HydraException:
        return text


def _differing_copies(config: DictConfig, copies: Sequence[tuple[str, str, Any]]) -> Iterator[str]:
    for key, name, value in copies:
        original = OmegaConf.select(config, name)
        if unused_values.of_training_without_steps(config, key):
            continue
        if value != (OmegaConf.to_container(original) if OmegaConf.is_config(original) else original):
            copy = plain_value(value)
            there = plain_value(original)
            yield f"{key}: {copy} differs from {name}, which is {there}; write the value there only"


def _loss(overrides: Sequence[str]) -> tuple[str, list[str]]:
    """The algorithm's name, which selects a file of config/loss, and the overrides without it.

    Raises:
        SettingsError: there is no such algorithm, or a module that may register it is not found.
    """
    try:
        matches = [match for text in overrides if (match := _KEY.match(text)) and match["key"] == EXTERNAL_LIB]
        import_extensions(_parsed(matches[-1]["value"] or "null") if matches else None)
    except ValueError as error:
        raise SettingsError(str(error)) from error
    try:
        loss, others = resolve(overrides, registry.DEFAULT, lambda text: plain_value(_parsed(text)))
    except ValueError as error:
        raise SettingsError(str(error)) from error
    try:
        registry.check_name(loss)
    except ValueError as error:
        raise SettingsError(f"{LOSS}: {error}") from error
    return loss, others


def _missing(config: DictConfig, prefix: str = "") -> Iterator[str]:
    """Names of settings that are still `???`; one that interpolates a missing setting does not count."""
    for key in config:
        node = config._get_node(key)
        if node._is_missing():
            yield f"{prefix}{key}"
        elif isinstance(node, DictConfig) and not node._is_none():
            yield from _missing(node, f"{prefix}{key}.")


def _unknown(override: str, known: Collection[str]) -> str | None:
    match = _KEY.match(override)
    if match is None:
        return f"{override!r} is not an override; write name=value"
    key = match["key"]
    rule = find_rule(match["key"])
    if key.startswith("-") and rule is None:
        return f"{key}: is not an option of the trainer; settings are written as name=value"
    if match["mark"].startswith("~") and (key in known or rule is not None):
        value = f"; write {key}=VALUE, or nothing for its default" if rule is None else ""
        return f"{key}: a setting cannot be deleted{value}"
    if key in known or is_in_open_group(key):
        return None
    return f"{key}: {describe_unknown(key, known)}"


def _opened(override: str) -> str:
    """The override with `++` where Hydra requires a mark, and where a recipe has `+`.

    Hydra refuses a name without a default unless it is marked, and one with a default if it is marked with `+`. Which
    settings have a default differs from the reference, so the marks of a recipe say nothing here.
    """
    match = _KEY.match(override)
    if match is None or match["mark"] not in ("", "+"):
        return override
    is_open = match["key"] in OPEN_GROUPS or is_in_open_group(match["key"])
    return f"++{override.removeprefix('+')}" if match["mark"] or is_open else override
