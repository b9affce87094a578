"""Fields of the typed settings that exist because the reference's sections have them.

`settings_schema/reference_settings.yaml` says what becomes of each; the trainer takes its overrides by the same list.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from typing import Any

from omegaconf import OmegaConf

from verl_omni.settings_schema.declarations import out_of_range
from verl_omni.settings_schema.engine_settings import full_name
from verl_omni.settings_schema.layout import default_of
from verl_omni.settings_schema.reference_settings import (
    GROUP,
    Copied,
    Rejected,
    WithoutEffect,
    copied_group,
    find_rule,
    rules,
)
from verl_omni.workers.algorithms.registered import ALGORITHMS

logger = logging.getLogger(__name__)
SETTINGS = "actor_rollout_ref."
ALGORITHM = "algorithm."


def check(config: Any, section: str) -> None:
    """Refuse numbers out of range and values of the reference's settings that are not supported.

    Those without effect are named in the log.

    Args:
        config: typed settings; a value that is the default of its field asks for nothing.
        section: name of the group that they are, e.g. `actor_rollout_ref.model`.

    Raises:
        ValueError: a number is out of range, a value is not supported, or the reference has no such setting. One line
            for each.
    """
    names = {f"{section}.{field.name}": getattr(config, field.name) for field in fields(config)}
    problems = [f"{name}: {text}" for name, value in names.items() if (text := out_of_range(name, value))]
    unused = {}
    for name, value in _given(config, section):
        match find_rule(name):
            case Rejected() as rule if not rule.accepts(value):
                accepted = " or ".join("null" if choice is None else str(choice) for choice in rule.accepted)
                problems.append(f"{name}: {value} is not supported; write {accepted}: {rule.advice}")
            case WithoutEffect(reason=reason):
                unused[name] = reason
            case Copied(name=target) if target.startswith(ALGORITHM) and value not in (None, default_of(target)):
                problems.append(f"{name}: {value} is not read here; write {target}, a setting of the trainer")
            case None if group := copied_group(name):
                problems.append(f"{name}: {value} is not a group of settings; write {group}")
            case None if group := copied_group(name.rpartition(".")[0]):
                problems.append(f"{name}: unknown setting; the group has copies of {group}")
            case _:
                pass
    if problems:
        raise ValueError("\n".join(problems))
    for name, reason in unused.items():
        logger.warning("%s has no effect: %s", name, reason)


def check_copies(model: Any, actor: Any, rollout: Any) -> None:
    """Refuse values that the reference derives from another setting and that differ from it.

    Args:
        model, actor, rollout: the typed settings of one policy.

    Raises:
        ValueError: values differ. One line for each.
    """
    groups = {"model": model, "actor": actor, "rollout": rollout}
    problems = []
    for section in ("model", "actor"):
        for name, value in _given(groups[section], f"{SETTINGS}{section}"):
            rule = find_rule(name)
            if not isinstance(rule, Copied) or not rule.name.startswith(SETTINGS):
                continue
            if name.startswith(f"{SETTINGS}model.pipeline.") and not ALGORITHMS[model.algorithm].on_recorded_steps:
                continue  # training does not run the sampler
            original: Any = groups
            for part in rule.name.removeprefix(SETTINGS).split("."):
                original = original[part]
            if plain(original) != value:
                problems.append(
                    f"{name}: {value} differs from {rule.name}, which is {original}; write the value there only"
                )
    if problems:
        raise ValueError("\n".join(problems))


def typed(value: Any, kind: type[Any]) -> Any:
    """A group of settings as its type; a mapping, as a section has it, becomes one."""
    if isinstance(value, kind) or not isinstance(value, Mapping):
        return value
    return kind(**value)


def one_of_two(first: str, second: str, value: Any, copy: Any, default: Any) -> Any:
    """The value of a setting that has two names.

    Args:
        first, second: the names, for the error message.
        value, copy: their values; None: not given.
        default: default of both.

    Raises:
        ValueError: both are given, and differ.
    """
    if copy is None or value == copy:
        return value
    if value not in (None, default):
        raise ValueError(f"{second}: {copy} differs from {first}, which is {value}; write one of them")
    return copy


def _given(config: Any, section: str) -> Iterator[tuple[str, Any]]:
    """(name, value) of each setting with a rule that is not the default of its field."""
    for field in fields(config):
        name = f"{section}.{field.name}"
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        value = getattr(config, field.name)
        if field.name.startswith("_") or value is None or value == default:
            continue
        if type(value).__module__.startswith(__name__.rpartition(".")[0]):
            continue  # settings of this package, which were checked when they were made
        if name in rules() or f"{name}{GROUP}" in rules() or any(known.startswith(f"{name}.") for known in rules()):
            for leaf, inner in _leaves(name, plain(value)):
                yield full_name(leaf), inner


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, Mapping) or name in rules():
        yield name, value
        return
    for key in value:
        if not key.startswith("_"):
            yield from _leaves(f"{name}.{key}", value[key])


def plain(value: Any) -> Any:
    """The value without OmegaConf's containers, and without tuples."""
    value = OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
    return list(value) if isinstance(value, tuple) else value
