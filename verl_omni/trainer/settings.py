"""Settings of the trainer: Hydra overrides to a checked configuration."""

from __future__ import annotations

import difflib
import importlib.util
import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from verl_omni.trainer import supported_values
from verl_omni.workers.algorithms import registry

CONFIG_NAME = "diffusion_trainer"
# Selects a file of config/loss.
LOSS = "actor_rollout_ref.actor.diffusion_loss.loss_mode"
# Groups whose keys the user chooses; supported_values.py and reward_settings.py check some of them.
OPEN = (
    "data.apply_chat_template_kwargs",
    "data.mm_processor_kwargs",
    "reward.reward_functions",
    "reward.scorer_kwargs",
    "actor_rollout_ref.rollout.engine_kwargs.vllm_omni",
    "actor_rollout_ref.rollout.val_kwargs.pipeline",
    "actor_rollout_ref.rollout.val_kwargs.algo",
    "actor_rollout_ref.model.extra_tokenizers",
    "ray_kwargs.ray_init",
)
_KEY = re.compile(r"^(?P<mark>[+~]{0,2})(?P<key>[^=@]+)(?:=|$)")


class SettingsError(ValueError):
    """Invalid settings; the message has one line for each."""


def load(overrides: Sequence[str]) -> DictConfig:
    """Compose the defaults with `overrides`.

    Raises:
        SettingsError: a name is unknown, a value cannot be parsed or is not supported, a required setting is missing,
            or one does not go with the algorithm.
    """
    loss, others = _loss(overrides)
    GlobalHydra.instance().clear()
    with initialize_config_module("verl_omni.trainer.config", version_base="1.3"):
        known = _known(loss)
        if unknown := [line for override in others if (line := _unknown(override, known))]:
            raise SettingsError("\n".join(unknown))
        try:
            config = compose(CONFIG_NAME, overrides=[f"loss={loss}", *(_opened(override) for override in others)])
        except (HydraException, OmegaConfBaseException) as error:
            raise SettingsError(str(error)) from error
    if missing := sorted(name for name in known if _is_missing(config, name)):
        raise SettingsError("\n".join(f"{name}: must be given" for name in missing))
    packages = (package for package in supported_values.TRACKER_PACKAGES.values() if package is not None)
    installed = frozenset(package for package in packages if importlib.util.find_spec(package) is not None)
    if wrong := [*registry.setting_conflicts(config), *supported_values.find_problems(config, installed)]:
        raise SettingsError("\n".join(wrong))
    return config


@cache
def _known(loss: str) -> tuple[str, ...]:
    """The names of all settings with an algorithm. Hydra must be initialized."""
    return tuple(_names(compose(CONFIG_NAME, overrides=[f"loss={loss}"])))


def _loss(overrides: Sequence[str]) -> tuple[str, list[str]]:
    """The algorithm's name, and the overrides without it. Each algorithm has settings of its own."""
    loss, others = registry.DEFAULT, []
    for override in overrides:
        name, _, value = override.partition("=")
        if name.lstrip("+") == LOSS:
            loss = value
        else:
            others.append(override)
    try:
        registry.check_name(loss)
    except ValueError as error:
        raise SettingsError(f"{LOSS}: {error}") from error
    return loss, others


def _names(config: Any, prefix: str = "") -> Iterator[str]:
    """Names of all settings and groups."""
    for key in config:
        name = f"{prefix}{key}"
        yield name
        if not OmegaConf.is_missing(config, key) and isinstance(config._get_node(key), DictConfig):
            node = config._get_node(key)
            if not node._is_none():
                yield from _names(node, f"{name}.")


def _is_missing(config: DictConfig, name: str) -> bool:
    """Whether a setting is still `???`; one that interpolates a missing setting does not count."""
    parent, _, key = name.rpartition(".")
    node = OmegaConf.select(config, parent) if parent else config
    return isinstance(node, DictConfig) and key in node._content and OmegaConf.is_missing(node, key)


def _unknown(override: str, known: Sequence[str]) -> str | None:
    match = _KEY.match(override)
    if match is None:
        return f"{override!r} is not an override; write name=value"
    key = match["key"]
    if key in known or _is_open(key):
        return None
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    if not near:
        last = key.rpartition(".")[2]
        near = [name for name in known if name.rpartition(".")[2] == last][:1]
    return f"{key}: unknown setting" + (f"; did you mean {near[0]}?" if near else "")


def _is_open(key: str) -> bool:
    return any(key.startswith(f"{name}.") for name in OPEN)


def _opened(override: str) -> str:
    """Add the `++` that Hydra requires before a name without a default."""
    match = _KEY.match(override)
    return (
        f"++{override}"
        if match and not match["mark"] and (match["key"] in OPEN or _is_open(match["key"]))
        else override
    )
