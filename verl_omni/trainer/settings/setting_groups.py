"""PURE: which settings are groups, by their defaults; other values are refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from omegaconf import DictConfig, OmegaConf


def groups(defaults: DictConfig, prefix: str = "") -> Iterator[tuple[str, bool]]:
    """Names of groups, outer ones first, each with whether it is empty: its keys are the user's."""
    for key in defaults:
        if OmegaConf.is_missing(defaults, key) or OmegaConf.is_interpolation(defaults, key):
            continue
        node = defaults._get_node(key)
        if isinstance(node, DictConfig) and not node._is_none():
            yield f"{prefix}{key}", not node
            yield from groups(node, f"{prefix}{key}.")


def find_problems(config: DictConfig, known: Mapping[str, bool]) -> list[str]:
    """Messages about groups that were replaced by a value that is no group.

    A group that is empty by default may be null: it becomes empty.

    Args:
        known: what `groups` found in the defaults.
    """
    found: dict[str, str] = {}
    for name, empty in known.items():
        if name.startswith(tuple(f"{group}." for group in found)):
            continue
        value = OmegaConf.select(config, name)
        if empty and value is None:
            OmegaConf.update(config, name, {})
        elif not OmegaConf.is_dict(value):
            found[name] = f"{name}: must be a group of settings, not {'null' if value is None else value}"
    return list(found.values())
